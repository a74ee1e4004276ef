"""PyTorch's arithmetic: cuBLAS, cuBLASLt, cuFFT, cuSOLVER, cuSPARSE, sorting, reductions, random numbers, run-time compilation."""
import os

import torch

from case import case

# SUITE_DEVICE=cpu tries the cases themselves where there is no GPU.
DEVICE = os.environ.get("SUITE_DEVICE", "cuda")
# Without a device nothing is run, instead of each case failing by itself.
torch.zeros(1, device=DEVICE)


def healthy():
    torch.cuda.synchronize()


def rand(*shape, seed=0, dtype=torch.float32):
    """Numbers that are the same everywhere: drawn on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype).to(DEVICE)


def close(got, want, most):
    """Checks a result against the CPU's in double precision."""
    want = want.to(torch.complex128 if want.is_complex() else torch.float64).cpu()
    error = ((got.to(want.dtype).cpu() - want).norm() / want.norm()).item()
    assert error < most, f"relative error {error:.3g}"
    return got


def product(dtype, most, n=512):
    a, b = rand(n, n, seed=1, dtype=dtype), rand(n, n, seed=2, dtype=dtype)
    return close(a @ b, a.cpu().double() @ b.cpu().double(), most)


@case
def matmul_fp32():
    return product(torch.float32, 1e-5)


@case
def matmul_fp64():
    return product(torch.float64, 1e-12)


@case(tolerance=1e-3)
def matmul_tf32():
    torch.set_float32_matmul_precision("high")
    try:
        return product(torch.float32, 5e-3)
    finally:
        torch.set_float32_matmul_precision("highest")


@case(tolerance=1e-3)
def matmul_fp16():
    return product(torch.float16, 5e-3), product(torch.float16, 5e-3, n=1000)


@case(tolerance=1e-2)
def matmul_bf16():
    return product(torch.bfloat16, 2e-2), product(torch.bfloat16, 2e-2, n=2048)


@case(tolerance=1e-2)
def matmul_shapes_bf16():
    """Odd and thin shapes pick different kernels: split-K, matrix by vector, batched, with bias."""
    results = []
    for m, k, n in ((1, 4096, 512), (17, 333, 5), (8192, 64, 64), (64, 16384, 64)):
        a, b = rand(m, k, seed=m, dtype=torch.bfloat16), rand(k, n, seed=n, dtype=torch.bfloat16)
        results.append(close(a @ b, a.cpu().double() @ b.cpu().double(), 2e-2))
    a, b, bias = rand(16, 64, 96, seed=1), rand(16, 96, 32, seed=2), rand(48, seed=3)
    results.append(close(torch.bmm(a, b), torch.bmm(a.cpu().double(), b.cpu().double()), 1e-5))
    weight, x = rand(48, 96, seed=4), rand(200, 96, seed=5)
    results.append(close(torch.nn.functional.linear(x, weight, bias), x.cpu().double() @ weight.cpu().double().t() + bias.cpu().double(), 1e-5))
    return results


@case
def matmul_complex_einsum():
    a, b = torch.complex(rand(128, 128, seed=1), rand(128, 128, seed=2)), torch.complex(rand(128, 128, seed=3), rand(128, 128, seed=4))
    c = torch.einsum("bij,bkj->bik", rand(4, 33, 65, seed=5), rand(4, 17, 65, seed=6))
    return close(a @ b, a.cpu().to(torch.complex128) @ b.cpu().to(torch.complex128), 1e-5), c


@case
def int8_matmul():
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-128, 127, (64, 128), generator=generator, dtype=torch.int8)
    b = torch.randint(-128, 127, (64, 128), generator=generator, dtype=torch.int8).t()
    got = torch._int_mm(a.to(DEVICE), b.to(DEVICE))
    assert torch.equal(got.cpu().long(), a.long() @ b.long())
    return got


@case(tolerance=1e-2)
def fp8_scaled_matmul():
    a, b = rand(64, 128, seed=1).to(torch.float8_e4m3fn), rand(96, 128, seed=2).to(torch.float8_e4m3fn)
    one = torch.ones((), device=DEVICE)
    got = torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return close(got, a.float().cpu().double() @ b.float().cpu().double().t(), 2e-2)


@case
def fft():
    x = rand(8, 4096, seed=1)
    prime = rand(4099, seed=2)
    image = rand(4, 60, 48, seed=3)
    volume = torch.complex(rand(12, 20, 18, seed=4), rand(12, 20, 18, seed=5))
    return [
        close(torch.fft.fft(x), torch.fft.fft(x.cpu().double()), 1e-5),
        close(torch.fft.rfft(prime), torch.fft.rfft(prime.cpu().double()), 1e-5),
        close(torch.fft.irfft2(torch.fft.rfft2(image)), image, 1e-5),
        close(torch.fft.fftn(volume), torch.fft.fftn(volume.cpu().to(torch.complex128)), 1e-5),
        close(torch.fft.fft(x.half()).to(torch.complex64), torch.fft.fft(x.cpu().double()), 1e-2),
        close(torch.stft(prime, 256, return_complex=True), torch.stft(prime.cpu().double(), 256, return_complex=True), 1e-5),
    ]


def positive(n, *batch, seed=0):
    a = rand(*batch, n, n, seed=seed, dtype=torch.float64)
    return a @ a.mT + n * torch.eye(n, device=DEVICE, dtype=torch.float64)


@case
def linalg_svd():
    a, batch = rand(96, 64, dtype=torch.float64), rand(10, 24, 16, seed=1, dtype=torch.float64)
    u, s, v = torch.linalg.svd(a, full_matrices=False)
    close(u @ torch.diag(s) @ v, a, 1e-8)
    return s, torch.linalg.svdvals(batch)


@case
def linalg_qr():
    a, batch = rand(96, 64, dtype=torch.float64), rand(10, 24, 16, seed=1, dtype=torch.float64)
    q, r = torch.linalg.qr(a)
    close(q @ r, a, 1e-10)
    return r.abs(), torch.linalg.qr(batch)[1].abs()


@case
def linalg_cholesky():
    a, batch = positive(80), positive(16, 12, seed=1)
    factor = torch.linalg.cholesky(a)
    close(factor @ factor.mT, a, 1e-10)
    return factor, torch.linalg.cholesky(batch), torch.cholesky_solve(rand(80, 3, dtype=torch.float64), factor)


@case
def linalg_solve():
    a, b, batch = positive(80), rand(80, 5, seed=3, dtype=torch.float64), positive(16, 12, seed=1)
    x = torch.linalg.solve(a, b)
    close(a @ x, b, 1e-10)
    triangle = torch.linalg.solve_triangular(a.tril(), b, upper=False)
    return x, torch.linalg.solve(batch, batch.sum(-1, keepdim=True)), triangle, torch.linalg.lu_factor(a)[0]


@case
def linalg_eigh():
    a, batch = positive(64), positive(16, 12, seed=1)
    values, vectors = torch.linalg.eigh(a)
    close(vectors @ torch.diag(values) @ vectors.mT, a, 1e-10)
    return values, torch.linalg.eigvalsh(batch)


@case
def linalg_inverse_lstsq():
    a, tall = positive(64), rand(100, 20, seed=2, dtype=torch.float64)
    inverse = torch.linalg.inv(a)
    close(a @ inverse, torch.eye(64), 1e-9)
    return inverse, torch.linalg.inv(positive(8, 30, seed=4)), torch.linalg.slogdet(a)[1], torch.linalg.lstsq(tall, tall[:, :3] * 2).solution


def sparse_matrix(rows, columns, seed=0):
    dense = rand(rows, columns, seed=seed)
    return torch.where(dense.abs() > 1.5, dense, torch.zeros_like(dense))


@case
def sparse_csr():
    dense, right = sparse_matrix(200, 150), rand(150, 64, seed=1)
    csr = dense.to_sparse_csr()
    vector = csr @ right[:, 0]
    both = (csr @ csr.to_dense().t().contiguous().to_sparse_csr()).to_dense()
    close(both, dense.cpu().double() @ dense.cpu().double().t(), 1e-5)
    return close(csr @ right, dense.cpu().double() @ right.cpu().double(), 1e-5), vector, both


@case(tolerance=1e-4)
def sparse_coo():
    dense, right = sparse_matrix(200, 150), rand(150, 64, seed=1).requires_grad_()
    coo = dense.to_sparse().coalesce()
    out = torch.sparse.mm(coo, right)
    out.square().sum().backward()
    total = (coo + coo).coalesce()
    return close(out, dense.cpu().double() @ right.detach().cpu().double(), 1e-5), right.grad, total.values(), torch.sparse.sum(coo, 0).to_dense()


@case
def sort_and_select():
    x = rand(50, 3000, seed=1)
    values, order = x.sort(dim=1, stable=True)
    assert torch.equal(values.cpu(), x.cpu().sort(dim=1, stable=True)[0])
    long = torch.arange(1 << 20, device=DEVICE) * 7919 % 1000003
    return values, order, x.topk(17)[0], x.kthvalue(100)[0], long.sort()[0], x.argsort(dim=0, descending=True, stable=True), x.median(dim=1)[0]


@case
def unique_and_counts():
    x = (rand(20000, seed=1) * 10).int()
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    assert int(counts.sum()) == x.numel()
    shifted = x - x.min()
    return values, inverse, counts, x.unique_consecutive(), shifted.bincount(), x.float().histc(20), torch.searchsorted(values.contiguous(), x[:100].contiguous())


@case
def scans():
    x = rand(33, 5000, seed=1, dtype=torch.float64)
    return x.cumsum(1), x.cumprod(0), x.cummax(1)[0], x.logcumsumexp(1), (x > 0).nonzero()[:1000], x.masked_select(x > 2)


@case(tolerance=1e-4)
def scatter_and_index():
    """Floating-point atomics add in any order."""
    index = (rand(100, 1000, seed=1).abs() * 30).long().clamp(max=99)
    x = rand(100, 1000, seed=2)
    added = torch.zeros(100, 1000, device=DEVICE).scatter_add_(0, index, x)
    most = torch.full((100, 1000), -9.0, device=DEVICE).scatter_reduce_(0, index, x, "amax")
    rows = torch.zeros(100, 1000, device=DEVICE).index_add_(0, index[:, 0], x)
    put = torch.zeros(100, device=DEVICE).index_put_((index[0],), x[0], accumulate=True)
    return added, most, rows, put, x.gather(0, index), x[index[:, 5]], x.take(index)


@case
def reductions():
    x = rand(64, 10007, seed=1)
    return x.sum(), x.mean(1), x.var(0), x.norm(dim=1), x.logsumexp(1), x.argmax(1), x.amin(0), x.prod(0), x.softmax(1), x.quantile(0.3, dim=0), torch.std_mean(x, 1)[0]


@case
def elementwise():
    x = rand(100003, seed=1)
    small = x.half().double() + x.bfloat16().double() + x.to(torch.int16).double()
    return x.sin() * x.exp() + torch.special.erfinv(x.tanh()), small, torch.lgamma(x.abs() + 1), x.view(torch.int32) >> 3, torch.polygamma(1, x.abs() + 1)


@case(tolerance=1e-4)
def elementwise_nvrtc():
    """These functions PyTorch compiles with NVRTC when they are first used."""
    x = rand(10007, seed=1).abs() + 0.5
    own = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice_plus(T x, T y, T a) { return a * x + y; }", a=2.0)
    return torch.special.bessel_j0(x), torch.special.i1e(x), torch.gcd((x * 1000).int(), (x * 77).int()), torch.special.zeta(x + 1, x), own(x, x * 3)


@case
def random_numbers():
    torch.cuda.manual_seed(1234)
    generator = torch.Generator(device=DEVICE).manual_seed(7)
    normal = torch.randn(1 << 20, device=DEVICE)
    assert abs(normal.mean().item()) < 0.01 and abs(normal.std().item() - 1) < 0.01
    weights = torch.rand(5, 100, device=DEVICE, generator=generator)
    return normal, torch.randperm(5000, device=DEVICE, generator=generator), torch.multinomial(weights, 20, generator=generator), torch.bernoulli(weights), torch.poisson(weights * 9)


@case(tolerance=1e-4)
def embedding():
    table = rand(1000, 64, seed=1).requires_grad_()
    index = (rand(50, 40, seed=2).abs() * 300).long().clamp(max=999)
    out = torch.nn.functional.embedding(index, table)
    bags = torch.nn.functional.embedding_bag(index, table, mode="mean")
    (out.square().mean() + bags.sum()).backward()
    assert torch.equal(out.detach().cpu(), table.detach().cpu()[index.cpu()])
    return out, bags, table.grad


@case
def resampling():
    a, b, image = rand(300, 20, seed=1), rand(200, 20, seed=2), rand(2, 3, 31, 33, seed=3)
    functional = torch.nn.functional
    grid = rand(2, 20, 20, 2, seed=4).tanh()
    sizes = [functional.interpolate(image, size=(64, 50), mode=mode) for mode in ("nearest", "bilinear", "bicubic")]
    return torch.cdist(a, b), sizes, functional.grid_sample(image, grid, align_corners=False), functional.max_pool2d(image, 3), functional.adaptive_avg_pool2d(image, 7), functional.unfold(image, 3)
