"""Small-transformer training and inference steps. Says ready when warm; for each line of input prints the fastest times in milliseconds."""
import json, os, sys, time
import torch, torch.nn as nn
torch.manual_seed(0); d = "cuda"
layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0); m = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(d); opt = torch.optim.AdamW(m.parameters(), 1e-4, fused=True)
x = torch.randn(16, 256, 512, device=d); y = torch.randn(16, 256, 512, device=d)
def train():
    opt.zero_grad(set_to_none=True)
    with torch.autocast(d, torch.bfloat16): loss = nn.functional.mse_loss(m(x), y)
    loss.backward(); opt.step(); return loss
def infer():
    with torch.no_grad(), torch.autocast(d, torch.bfloat16): return m(x[:1])
def fastest(f, n):
    for _ in range(2): f()
    torch.cuda.synchronize(); t = []
    for _ in range(n):
        a = time.perf_counter(); f(); torch.cuda.synchronize(); t.append(time.perf_counter() - a)
    return min(t) * 1e3
fastest(train, 20), fastest(infer, 20)
# All of them on the same core from here on, with all their threads: what differs between cores is not what is measured.
core = sorted(os.sched_getaffinity(0))[:3][-1:]
for thread in os.listdir("/proc/self/task"):
    try: os.sched_setaffinity(int(thread), core)
    except ProcessLookupError: pass
fastest(train, 5), fastest(infer, 5); print("ready", flush=True)
for _ in sys.stdin: print(json.dumps({"train_ms": fastest(train, 7), "infer_ms": fastest(infer, 25)}), flush=True)
