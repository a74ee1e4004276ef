"""A Triton kernel compiled at run time; prints ok."""
import torch, triton, triton.language as tl
@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B); m = i < n; tl.store(o + i, tl.load(x + i, m) + tl.load(y + i, m), m)
n = 100003; x = torch.randn(n, device="cuda"); y = torch.randn(n, device="cuda"); o = torch.empty_like(x); add[(triton.cdiv(n, 1024),)](x, y, o, n, B=1024); assert torch.equal(o, x + y); print("ok")
