"""The package with arrays of PyTorch and CuPy on a card: `mica run -- python3 card.py`."""

import mica
import torch

gpu = mica.Vgpu()
print(gpu)
torch.manual_seed(1)
a, b = torch.randn(300, 200, device="cuda"), torch.randn(200, 100, device="cuda")
ta = gpu.array(a)
assert ta.address == a.data_ptr(), "memory of the same card is used in place"
product = torch.from_dlpack(gpu.matmul(ta, gpu.array(b)))
assert product.device.type == "cuda" and torch.allclose(product, a @ b, atol=1e-3), "float32"
for kind in (torch.float16, torch.bfloat16):
    x, y = a.to(kind), b.to(kind)
    got = torch.from_dlpack(gpu.matmul(gpu.array(x), gpu.array(y.t().contiguous()).T))
    assert got.dtype == kind and torch.allclose(got.float(), (x.float() @ y.float()), atol=0.3), kind
strided = a[::2, 10:50]
assert torch.equal(torch.from_dlpack(gpu.map(mica.Expr(0) * 2, gpu.array(strided))), strided * 2), "strides"
q, k, v = (torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.float16) for _ in range(3))
got = torch.from_dlpack(gpu.attention(*map(gpu.array, (q, k, v)), causal=True))
want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
assert torch.allclose(got, want, atol=4e-3), (got - want).abs().max()
# A tensor that PyTorch holds outlives ours, and the other way round.
held = torch.from_dlpack(gpu.softmax(ta))
kept = gpu.array(torch.ones(1000, device="cuda"))
del ta
torch.cuda.empty_cache()
assert torch.allclose(held.sum(1), torch.ones(300, device="cuda"), atol=1e-4) and kept.numpy().sum() == 1000
try:
    gpu.zeros((int(gpu.memory()[1]) + 1,), "int8")
    raise AssertionError("the limit does not hold")
except mica.OutOfMemoryError as error:
    print("refused:", error)
print("PyTorch ok:", *gpu.providers()[0])
try:
    import cupy
except ImportError:
    print("CuPy is not here")
else:
    c = cupy.arange(12, dtype="float32").reshape(3, 4)
    assert gpu.array(c).address == c.data.ptr
    d = cupy.from_dlpack(gpu.matmul(gpu.array(c), gpu.array(c).T))
    assert cupy.allclose(d, c @ c.T)
    print("CuPy ok")
