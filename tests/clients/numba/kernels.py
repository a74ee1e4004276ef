"""Kernels of many kinds through Numba's CUDA target, each checked against NumPy.

Prints one line a kernel and `ok` last; exits with 1 at the first wrong result.
"""

import math
import sys

import numpy as np
from numba import cuda, float32, float64, int32, int64

RNG = np.random.default_rng(20240607)
CASES = []


def case(function):
    """Adds a function to what is run."""
    CASES.append(function)
    return function


def same(got, wanted):
    """Exactly the same numbers."""
    np.testing.assert_array_equal(got, wanted)


def close(got, wanted, tolerance):
    """The same numbers but for rounding."""
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@case
def vector_add():
    @cuda.jit
    def add(a, b, c):
        i = cuda.grid(1)
        if i < c.size:
            c[i] = a[i] + b[i]

    a, b = RNG.random((2, 10_007), dtype=np.float32)
    c = np.zeros_like(a)
    add[(a.size + 255) // 256, 256](a, b, c)
    same(c, a + b)


@case
def reduction_in_shared_memory():
    @cuda.jit
    def total(values, sums):
        part = cuda.shared.array(128, int64)
        me = cuda.threadIdx.x
        part[me] = 0
        i = cuda.grid(1)
        while i < values.size:
            part[me] += values[i]
            i += cuda.gridsize(1)
        cuda.syncthreads()
        step = 64
        while step > 0:
            if me < step:
                part[me] += part[me + step]
            cuda.syncthreads()
            step //= 2
        if me == 0:
            sums[cuda.blockIdx.x] = part[0]

    values = RNG.integers(-1000, 1000, 50_001)
    sums = np.zeros(7, np.int64)
    total[7, 128](values, sums)
    same(sums.sum(), values.sum())


@case
def atomic_operations():
    @cuda.jit
    def count(values, found):
        i = cuda.grid(1)
        if i < values.size:
            cuda.atomic.add(found, 0, values[i])
            cuda.atomic.max(found, 1, values[i])
            cuda.atomic.min(found, 2, values[i])
            cuda.atomic.xor(found, 3, values[i])
            cuda.atomic.cas(found, 4, 0, values[i] | 1)

    values = RNG.integers(1, 1 << 20, 4096, np.int32)
    found = np.array([0, 0, 1 << 30, 0, 0], np.int32)
    count[32, 128](values, found)
    wanted = [values.sum(dtype=np.int32), values.max(), values.min(), np.bitwise_xor.reduce(values)]
    same(found[:4], np.array(wanted, np.int32))
    assert found[4] & 1 and (found[4] in values | 1)


@case
def stencil_2d():
    @cuda.jit
    def smooth(old, new):
        y, x = cuda.grid(2)
        if 0 < y < old.shape[0] - 1 and 0 < x < old.shape[1] - 1:
            near = old[y - 1, x] + old[y + 1, x] + old[y, x - 1] + old[y, x + 1]
            new[y, x] = 0.2 * (old[y, x] + near)

    old = RNG.random((123, 217))
    new = old.copy()
    smooth[(16, 28), (8, 8)](old, new)
    near = old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]
    wanted = old.copy()
    wanted[1:-1, 1:-1] = 0.2 * (old[1:-1, 1:-1] + near)
    close(new, wanted, 1e-14)


@case
def mandelbrot_of_complex_numbers():
    @cuda.jit
    def escape(image, most):
        y, x = cuda.grid(2)
        if y < image.shape[0] and x < image.shape[1]:
            c = complex(-2.0 + 3.0 * x / image.shape[1], -1.0 + 2.0 * y / image.shape[0])
            z = 0j
            steps = 0
            while steps < most and z.real * z.real + z.imag * z.imag < 4.0:
                z = z * z + c
                steps += 1
            image[y, x] = steps

    image = np.zeros((64, 96), np.int32)
    escape[(8, 12), (8, 8)](image, 50)
    y, x = np.mgrid[0:64, 0:96]
    c = (-2.0 + 3.0 * x / 96) + 1j * (-1.0 + 2.0 * y / 64)
    z, wanted, alive = np.zeros_like(c), np.zeros(c.shape, np.int32), np.ones(c.shape, bool)
    for _ in range(50):
        alive &= z.real**2 + z.imag**2 < 4.0
        z[alive] = z[alive] ** 2 + c[alive]
        wanted += alive
    # A point on the very border may escape a step earlier or later by rounding.
    assert (image != wanted).mean() < 0.005


TILE = 16


@case
def matmul_in_tiles():
    @cuda.jit
    def multiply(a, b, c):
        left = cuda.shared.array((TILE, TILE), float32)
        right = cuda.shared.array((TILE, TILE), float32)
        y, x = cuda.grid(2)
        ty, tx = cuda.threadIdx.x, cuda.threadIdx.y
        sum_ = float32(0)
        for tile in range((a.shape[1] + TILE - 1) // TILE):
            k = tile * TILE
            left[ty, tx] = a[y, k + tx] if y < a.shape[0] and k + tx < a.shape[1] else 0
            right[ty, tx] = b[k + ty, x] if k + ty < b.shape[0] and x < b.shape[1] else 0
            cuda.syncthreads()
            for i in range(TILE):
                sum_ += left[ty, i] * right[i, tx]
            cuda.syncthreads()
        if y < c.shape[0] and x < c.shape[1]:
            c[y, x] = sum_

    a, b = RNG.random((70, 50), dtype=np.float32), RNG.random((50, 90), dtype=np.float32)
    c = np.zeros((70, 90), np.float32)
    multiply[(5, 6), (TILE, TILE)](a, b, c)
    close(c, a @ b, 1e-4)


@case
def device_functions():
    @cuda.jit(device=True)
    def polynomial(x, a, b):
        return (a * x + b) * x + 1.0

    @cuda.jit(device=True, inline="never")
    def gcd(a, b):
        while b:
            a, b = b, a % b
        return a

    @cuda.jit
    def apply(x, n, y, g):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = polynomial(x[i], 3.0, -2.0)
            g[i] = gcd(n[i], 360360)

    x, n = RNG.random(1000), RNG.integers(1, 10**6, 1000)
    y, g = np.zeros_like(x), np.zeros_like(n)
    apply[8, 128](x, n, y, g)
    close(y, (3.0 * x - 2.0) * x + 1.0, 1e-14)
    same(g, np.gcd(n, 360360))


@case
def float64_mathematics():
    @cuda.jit
    def functions(x, out):
        i = cuda.grid(1)
        if i < x.size:
            v = x[i]
            out[0, i] = math.sin(v)
            out[1, i] = math.exp(-v)
            out[2, i] = math.log1p(v)
            out[3, i] = math.sqrt(v)
            out[4, i] = math.atan2(v, 2.0)
            out[5, i] = math.pow(v, 1.7)
            out[6, i] = math.erf(v)
            out[7, i] = math.hypot(v, 3.0)
            out[8, i] = math.tanh(v)
            out[9, i] = math.lgamma(v + 0.5)

    x = RNG.random(777) * 5 + 0.01
    out = np.zeros((10, x.size))
    functions[7, 128](x, out)
    erf, lgamma = np.vectorize(math.erf), np.vectorize(math.lgamma)
    wanted = [np.sin(x), np.exp(-x), np.log1p(x), np.sqrt(x), np.arctan2(x, 2.0), x**1.7]
    wanted += [erf(x), np.hypot(x, 3.0), np.tanh(x), lgamma(x + 0.5)]
    close(out, np.array(wanted), 1e-12)


@case
def streams_and_events():
    @cuda.jit
    def scale(values, factor):
        i = cuda.grid(1)
        if i < values.size:
            values[i] *= factor

    host = cuda.pinned_array(20_000, np.float32)
    host[:] = np.arange(20_000)
    wanted = host * np.float32(3 * 5)
    first, second = cuda.stream(), cuda.stream()
    begin, middle, end = cuda.event(), cuda.event(), cuda.event()
    begin.record(first)
    device = cuda.to_device(host, stream=first)
    scale[100, 256, first](device, 3)
    middle.record(first)
    middle.wait(second)
    scale[100, 256, second](device, 5)
    device.copy_to_host(host, stream=second)
    end.record(second)
    end.synchronize()
    assert end.query() and cuda.event_elapsed_time(begin, end) >= 0
    same(host, wanted)


@case
def histogram_with_shared_atomics():
    @cuda.jit
    def histogram(values, bins):
        mine = cuda.shared.array(256, int32)
        mine[cuda.threadIdx.x] = 0
        cuda.syncthreads()
        for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
            cuda.atomic.add(mine, values[i], 1)
        cuda.syncthreads()
        cuda.atomic.add(bins, cuda.threadIdx.x, mine[cuda.threadIdx.x])

    values = RNG.integers(0, 256, 100_000, np.uint8)
    bins = np.zeros(256, np.int32)
    histogram[9, 256](values, bins)
    same(bins, np.bincount(values, minlength=256))


@case
def scan_with_warp_shuffles():
    @cuda.jit
    def scan(values, sums):
        i = cuda.grid(1)
        lane = cuda.laneid
        value = values[i]
        step = 1
        while step < 32:
            other = cuda.shfl_up_sync(0xFFFFFFFF, value, step)
            if lane >= step:
                value += other
            step *= 2
        sums[i] = value

    values = RNG.integers(0, 100, 1024, np.int32)
    sums = np.zeros_like(values)
    scan[8, 128](values, sums)
    same(sums.reshape(-1, 32), values.reshape(-1, 32).cumsum(1))


@case
def votes_and_bits():
    @cuda.jit
    def bits(values, out):
        i = cuda.grid(1)
        odd = values[i] % 2 == 1
        out[0, i] = cuda.ballot_sync(0xFFFFFFFF, odd)
        out[1, i] = cuda.popc(values[i])
        out[2, i] = cuda.brev(values[i])
        out[3, i] = cuda.clz(values[i])
        out[4, i] = cuda.any_sync(0xFFFFFFFF, values[i] > 4_000_000_000)

    values = RNG.integers(0, 1 << 32, 256, np.uint32)
    out = np.zeros((5, 256), np.uint32)
    bits[2, 128](values, out)
    warps = values.reshape(-1, 32)
    ballots = ((warps & 1) << np.arange(32, dtype=np.uint32)).sum(1, dtype=np.uint32)
    same(out[0].reshape(-1, 32), np.repeat(ballots, 32).reshape(-1, 32))
    text = [f"{value:032b}" for value in values]
    same(out[1], [word.count("1") for word in text])
    same(out[2], np.array([int(word[::-1], 2) for word in text], np.uint32))
    same(out[3], [len(word) - len(word.lstrip("0")) for word in text])
    same(out[4].reshape(-1, 32).T[0], (warps > 4_000_000_000).any(1))


@case
def int64_arithmetic():
    @cuda.jit
    def collatz(start, steps):
        i = cuda.grid(1)
        if i < start.size:
            n = start[i]
            count = int64(0)
            while n != 1:
                n = n // 2 if n % 2 == 0 else 3 * n + 1
                count += 1
            steps[i] = count

    start = np.arange(1, 3001) + (1 << 33)
    steps = np.zeros_like(start)
    collatz[24, 128](start, steps)

    def count(n):
        found = 0
        while n != 1:
            n, found = (n // 2 if n % 2 == 0 else 3 * n + 1), found + 1
        return found

    same(steps, [count(int(n)) for n in start])


@case
def cooperative_grid():
    @cuda.jit
    def sweep(rows):
        me = cuda.grid(1)
        grid = cuda.cg.this_grid()
        for row in range(1, rows.shape[0]):
            opposite = rows.shape[1] - me - 1
            rows[row, me] = rows[row - 1, opposite] + 1
            grid.sync()

    rows = np.zeros((64, 128), np.int32)
    sweep[4, 32](rows)
    same(rows, np.repeat(np.arange(64, dtype=np.int32), 128).reshape(64, 128))


@case
def constant_and_local_memory():
    table = np.arange(10.0) ** 2

    @cuda.jit
    def lookup(out):
        constants = cuda.const.array_like(table)
        mine = cuda.local.array(10, float64)
        i = cuda.grid(1)
        for k in range(10):
            mine[k] = constants[(i + k) % 10] * k
        total = 0.0
        for k in range(10):
            total += mine[9 - k]
        out[i] = total

    out = np.zeros(64)
    lookup[2, 32](out)
    i, k = np.mgrid[0:64, 0:10]
    close(out, (table[(i + k) % 10] * k).sum(1), 1e-14)


@case
def ufunc_and_reduce():
    from numba import vectorize

    @vectorize(["float32(float32, float32)"], target="cuda")
    def mix(a, b):
        return a * b + 1

    largest = cuda.reduce(lambda a, b: a if a > b else b)
    a, b = RNG.random((2, 5000), dtype=np.float32)
    close(mix(a, b), a * b + 1, 1e-6)
    same(largest(a), a.max())


@case
def mapped_and_managed_memory():
    @cuda.jit
    def increment(values):
        i = cuda.grid(1)
        if i < values.size:
            values[i] += i

    mapped = cuda.mapped_array(1000, np.int64)
    managed = cuda.managed_array(1000, np.int64)
    for values in (mapped, managed):
        values[:] = 7
        increment[8, 128](values)
        cuda.synchronize()
        same(np.asarray(values), np.arange(1000) + 7)


@case
def wrong_index_is_an_exception():
    @cuda.jit(debug=True, opt=False)
    def divide(values, by):
        values[cuda.grid(1)] //= by

    values = np.arange(1, 33)
    try:
        divide[1, 32](values, 0)
    except ZeroDivisionError:
        return
    raise AssertionError("a division by zero in a checked kernel raised nothing")


def main():
    print(f"numba {__import__('numba').__version__} on {cuda.get_current_device().name.decode()}"
          if isinstance(cuda.get_current_device().name, bytes)
          else f"numba {__import__('numba').__version__} on {cuda.get_current_device().name}")
    for function in CASES:
        if len(sys.argv) > 1 and sys.argv[1] not in function.__name__:
            continue
        function()
        print(f"  {function.__name__}")
    print("ok")


if __name__ == "__main__":
    main()
