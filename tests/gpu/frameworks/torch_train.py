"""Trains a small transformer block with PyTorch: SDPA, autocast, a CUDA graph, torch.compile; prints ok."""
import sys, torch, torch.nn as nn
torch.manual_seed(0)
d = torch.device("cuda")
class Block(nn.Module):
    def __init__(self, w=256, h=4):
        super().__init__(); self.h = h; self.q = nn.Linear(w, 3 * w); self.o = nn.Linear(w, w); self.n = nn.LayerNorm(w); self.f = nn.Sequential(nn.Linear(w, 4 * w), nn.GELU(), nn.Linear(4 * w, w))
    def forward(self, x):
        b, s, w = x.shape; q, k, v = self.q(self.n(x)).view(b, s, 3, self.h, w // self.h).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, w)
        x = x + self.o(a); return x + self.f(x)
m = nn.Sequential(Block(), Block()).to(d); opt = torch.optim.AdamW(m.parameters(), 1e-3); x = torch.randn(8, 128, 256, device=d); y = torch.randn(8, 128, 256, device=d)
losses = []
for _ in range(20):
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16): loss = nn.functional.mse_loss(m(x), y)
    loss.backward(); opt.step(); losses.append(loss.item())
assert losses[-1] < losses[0], losses
a = torch.randn(512, 512, device=d); out = torch.empty_like(a); s = torch.cuda.Stream()
with torch.cuda.stream(s):
    for _ in range(3): torch.mm(a, a, out=out)
torch.cuda.synchronize(); g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g): torch.mm(a, a, out=out); out.add_(1)
want = a @ a + 1
for _ in range(5): g.replay()
torch.cuda.synchronize(); assert torch.allclose(out, want, atol=1e-2)
if "--compile" in sys.argv:
    f = torch.compile(lambda t: (t * 2 + 1).relu().sum()); assert abs(f(a).item() - (a * 2 + 1).relu().sum().item()) < 1.0
free, total = torch.cuda.mem_get_info(); print("memory", free >> 20, total >> 20, torch.cuda.get_device_properties(0).total_memory >> 20); print("ok")
