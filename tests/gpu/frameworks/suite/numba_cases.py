"""Numba's CUDA target: its own driver binding, kernels from Python."""
import math

import numpy as np

# Numba asks for a name that NumPy 2.4 no longer has.
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
from numba import cuda, float32

from case import captured, case


def healthy():
    cuda.synchronize()


@cuda.jit
def add_kernel(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + math.sin(y[i])


@case
def add():
    x, y = np.arange(10000, dtype=np.float64), np.ones(10000)
    out = np.zeros(10000)
    add_kernel[40, 256](x, y, out)
    assert np.allclose(out, x + np.sin(1.0))
    return out


@cuda.jit
def tile_kernel(a, b, out):
    left = cuda.shared.array((16, 16), float32)
    right = cuda.shared.array((16, 16), float32)
    column, row = cuda.grid(2)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    total = float32(0.0)
    for step in range(a.shape[1] // 16):
        left[i, j] = a[row, step * 16 + j]
        right[i, j] = b[step * 16 + i, column]
        cuda.syncthreads()
        for k in range(16):
            total += left[i, k] * right[k, j]
        cuda.syncthreads()
    out[row, column] = total


@case
def shared_memory():
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((64, 96)).astype(np.float32), generator.standard_normal((96, 64)).astype(np.float32)
    out = cuda.device_array((64, 64), np.float32)
    tile_kernel[(4, 4), (16, 16)](cuda.to_device(a), cuda.to_device(b), out)
    assert np.allclose(out.copy_to_host(), a @ b, atol=1e-3)
    return out


@cuda.jit
def histogram_kernel(x, counts):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(counts, x[i] % 32, 1)


@case
def atomics():
    x = np.arange(20000, dtype=np.int32) * 7
    counts = cuda.to_device(np.zeros(32, np.int32))
    histogram_kernel[80, 256](x, counts)
    assert (counts.copy_to_host() == np.bincount(x % 32, minlength=32)).all()
    return counts


@case
def streams_and_pinned():
    stream, pinned = cuda.stream(), cuda.pinned_array(4096, np.float64)
    pinned[:] = np.arange(4096)
    x = cuda.to_device(pinned, stream=stream)
    out = cuda.device_array_like(x, stream=stream)
    begin, end = cuda.event(), cuda.event()
    begin.record(stream)
    add_kernel[16, 256, stream](x, x, out)
    end.record(stream)
    host = out.copy_to_host(stream=stream)
    stream.synchronize()
    assert cuda.event_elapsed_time(begin, end) >= 0
    return host


@cuda.reduce
def total(a, b):
    return a + b


@case
def reduction():
    x = np.arange(100000, dtype=np.float64)
    assert total(x) == x.sum()
    return total(x)


@cuda.jit
def warp_kernel(out):
    lane = cuda.threadIdx.x
    value = lane
    for shift in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, shift)
    if lane == 0:
        out[cuda.blockIdx.x] = value


@case
def warp_shuffles():
    out = cuda.to_device(np.zeros(4, np.int64))
    warp_kernel[4, 32](out)
    assert (out.copy_to_host() == 496).all()
    return out


@cuda.jit
def print_kernel(x):
    print(x[cuda.blockIdx.x], 42)


@case
def print_text():
    with captured(1) as text:
        print_kernel[2, 1](np.array([5, 6]))
        cuda.synchronize()
    lines = sorted(text[0].split("\n"))
    assert "5 42" in lines and "6 42" in lines, text[0][:200]
    return [line for line in lines if line]


@case
def ufuncs():
    from numba import vectorize

    @vectorize(["float32(float32, float32)"], target="cuda")
    def hypotenuse(a, b):
        return math.sqrt(a * a + b * b)

    x = cuda.to_device(np.arange(1000, dtype=np.float32).reshape(10, 100))
    part = np.ascontiguousarray(x[2:5].copy_to_host())
    return part, hypotenuse(part, part)
