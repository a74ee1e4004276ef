"""Triton: kernels compiled at run time, tensor cores, tensor descriptors (TMA), clusters, launch attributes, text, faults."""
import re

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as on_cuda
from triton.tools.tensor_descriptor import TensorDescriptor

from case import captured, case
from torch_math_cases import DEVICE, close, healthy, rand  # noqa: F401


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


def add(n, **options):
    x, y = rand(n, seed=1), rand(n, seed=2)
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024, **options)
    assert torch.equal(out.cpu(), x.cpu() + y.cpu())
    return out


@case
def vector_add():
    return add(100003), add(100003, num_warps=8)


@triton.jit
def matmul_kernel(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, inner = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        left = tl.load(a + rows[:, None] * k + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * n + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


def square(dtype, most, tile=64, **options):
    a, b = rand(512, 512, seed=1, dtype=dtype), rand(512, 512, seed=2, dtype=dtype)
    c = torch.empty(512, 512, device=DEVICE)
    matmul_kernel[(512 // tile, 512 // tile)](a, b, c, 512, 512, 512, M=tile, N=tile, K=32, **options)
    return close(c, a.cpu().double() @ b.cpu().double(), most)


@case(tolerance=1e-3)
def matmul_tensor_cores():
    return square(torch.float16, 1e-3), square(torch.bfloat16, 1e-3, 128, num_warps=8, num_stages=3), square(torch.float32, 5e-3)


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, other=float("-inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, 0), at < columns)


@case
def softmax():
    x = rand(200, 1000, seed=1)
    out = torch.empty_like(x)
    softmax_kernel[(200,)](x, out, 1000, BLOCK=1024)
    return close(out, x.cpu().double().softmax(1), 1e-5)


@triton.jit
def histogram_kernel(x, counts, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(x + at, at < n, other=0) % 64, 1, at < n)


@case
def atomics():
    n = 100000
    x = torch.arange(n, device=DEVICE, dtype=torch.int32) * 7
    counts = torch.zeros(64, device=DEVICE, dtype=torch.int32)
    histogram_kernel[(triton.cdiv(n, 256),)](x, counts, n, BLOCK=256)
    assert torch.equal(counts.cpu(), (x.cpu() % 64).bincount(minlength=64).int())
    return counts


tuned_matmul = triton.autotune(
    configs=[triton.Config({"M": m, "N": n, "K": 32}, num_warps=warps, num_stages=stages) for m, n, warps, stages in ((32, 32, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3))],
    key=["m", "n", "k"],
)(matmul_kernel)


@case(tolerance=1e-3)
def autotune():
    """Measures three kernels with events and keeps the fastest; which one is not compared."""
    a, b = rand(512, 512, seed=1, dtype=torch.float16), rand(512, 512, seed=2, dtype=torch.float16)
    c = torch.empty(512, 512, device=DEVICE)
    tuned_matmul[lambda meta: (512 // meta["M"], 512 // meta["N"])](a, b, c, 512, 512, 512)
    return close(c, a.cpu().double() @ b.cpu().double(), 1e-3)


@triton.jit
def descriptor_kernel(a, b, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        total = tl.dot(a.load([row, start]), b.load([start, column]), total)
    c.store([row, column], total.to(tl.float16))


@case(tolerance=1e-3)
def tma_host_descriptors():
    """Tensor maps made on the host and passed as kernel parameters."""
    a, b = rand(256, 512, seed=1, dtype=torch.float16), rand(512, 384, seed=2, dtype=torch.float16)
    c = torch.empty(256, 384, device=DEVICE, dtype=torch.float16)
    views = TensorDescriptor.from_tensor(a, [128, 64]), TensorDescriptor.from_tensor(b, [64, 128]), TensorDescriptor.from_tensor(c, [128, 128])
    descriptor_kernel[(2, 3)](*views, 512, M=128, N=128, K=64, num_warps=8)
    return close(c, a.cpu().double() @ b.cpu().double(), 5e-3)


@triton.jit
def device_descriptor_kernel(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[rows, columns], strides=[columns, 1], block_shape=[M, N])
    target = tl.make_tensor_descriptor(out, shape=[rows, columns], strides=[columns, 1], block_shape=[M, N])
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([row, column], source.load([row, column]) * 2)


@case
def tma_device_descriptors():
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device=DEVICE, dtype=torch.int8))
    x = rand(256, 256, seed=1)
    out = torch.empty_like(x)
    device_descriptor_kernel[(4, 4)](x, out, 256, 256, M=64, N=64)
    assert torch.equal(out.cpu(), x.cpu() * 2)
    return out


@case(optional=True)
def cluster_of_two():
    """Two blocks in a cluster work on one program."""
    return add(100003, num_ctas=2)


@triton.jit
def dependent_kernel(x, n, BLOCK: tl.constexpr):
    on_cuda.gdc_wait()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, at < n) * 2 + 1, at < n)
    on_cuda.gdc_launch_dependents()


@case
def dependent_launches():
    """Programmatic dependent launch: a kernel may begin before the one in front of it has ended."""
    x = torch.zeros(50000, device=DEVICE)
    for _ in range(10):
        dependent_kernel[(triton.cdiv(50000, 256),)](x, 50000, BLOCK=256, launch_pdl=True)
    assert bool((x == 1023).all())
    return x


@triton.jit
def barrier_kernel(counter, out, programs):
    """Every program waits for all others, which only a cooperative launch allows."""
    tl.atomic_add(counter, 1)
    while tl.atomic_add(counter, 0) < programs:
        pass
    tl.store(out + tl.program_id(0), tl.atomic_add(counter, 0))


@case(seconds=20)
def cooperative_grid():
    counter, out = torch.zeros(1, device=DEVICE, dtype=torch.int32), torch.zeros(64, device=DEVICE, dtype=torch.int32)
    barrier_kernel[(64,)](counter, out, 64, launch_cooperative_grid=True)
    assert bool((out == 64).all())
    return out


@triton.jit
def print_kernel(x):
    tl.device_print("seen", tl.load(x + tl.program_id(0)))


@case
def device_print():
    with captured(1) as text:
        print_kernel[(2,)](torch.tensor([41, 42], device=DEVICE, dtype=torch.int32), num_warps=1)
        torch.cuda.synchronize()
    # One line for each thread; equal ones and their order say nothing.
    lines = sorted({re.sub(r"\s+", " ", line).strip() for line in text[0].splitlines() if "seen" in line})
    assert any("41" in line for line in lines) and any("42" in line for line in lines), text[0][:200]
    return lines


@triton.jit
def asm_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [tl.load(x + at)], dtype=tl.int32, is_pure=True, pack=1))


@case
def inline_assembly():
    x = torch.arange(1024, device=DEVICE, dtype=torch.int32)
    out = torch.empty_like(x)
    asm_kernel[(1,)](x, out, BLOCK=1024)
    assert out.tolist() == [one.bit_count() for one in range(1024)]
    return out


@triton.jit
def assert_kernel(x):
    tl.device_assert(tl.load(x) == 1, "x is not one")


@case(own=True, env={"TRITON_DEBUG": "1"})
def device_assert():
    with captured(2) as text:
        try:
            assert_kernel[(1,)](torch.zeros(1, device=DEVICE, dtype=torch.int32), num_warps=1)
            torch.cuda.synchronize()
            message = "no error"
        except RuntimeError as error:
            message = str(error).splitlines()[0]
    assert "x is not one" in text[0], f"stderr: {text[0][:200]!r}, error: {message}"
    return message


@triton.jit
def wild_kernel(x, distance):
    tl.store(x + distance, 1)


@case(own=True)
def illegal_address():
    """The error of the driver, at the next wait."""
    try:
        wild_kernel[(1,)](torch.zeros(1, device=DEVICE, dtype=torch.int32), 1 << 42)
        torch.cuda.synchronize()
        return "no error"
    except RuntimeError as error:
        message = str(error).splitlines()[0]
    assert "illegal memory access" in message, message
    return message
