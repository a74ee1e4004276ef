"""Median time of small-transformer training and inference steps, in milliseconds; prints one JSON object."""
import json, sys, time, torch, torch.nn as nn
torch.manual_seed(0); d = "cuda"
layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0); m = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(d); opt = torch.optim.AdamW(m.parameters(), 1e-4, fused=True)
x = torch.randn(16, 256, 512, device=d); y = torch.randn(16, 256, 512, device=d)
def train():
    opt.zero_grad(set_to_none=True)
    with torch.autocast(d, torch.bfloat16): loss = nn.functional.mse_loss(m(x), y)
    loss.backward(); opt.step(); return loss
def infer():
    with torch.no_grad(), torch.autocast(d, torch.bfloat16): return m(x[:1])
def median(f, n):
    for _ in range(10): f()
    torch.cuda.synchronize(); t = []
    for _ in range(n):
        a = time.perf_counter(); f(); torch.cuda.synchronize(); t.append(time.perf_counter() - a)
    return sorted(t)[n // 2] * 1e3
print(json.dumps({"train_ms": median(train, 150), "infer_ms": median(infer, 400)}))
