"""CuPy's arrays and kernels of one's own, each checked against NumPy. Prints `ok` last."""

import sys

import cupy as cp
import numpy as np

RNG = np.random.default_rng(5)
CASES = []


def case(function):
    """Adds a function to what is run."""
    CASES.append(function)
    return function


@case
def elementwise():
    a, b = RNG.random((2, 5000))
    got = cp.sqrt(cp.asarray(a)) * cp.exp(cp.asarray(b)) + 1
    np.testing.assert_allclose(got.get(), np.sqrt(a) * np.exp(b) + 1, rtol=1e-12)


@case
def reductions():
    a = RNG.random((300, 40))
    d = cp.asarray(a)
    np.testing.assert_allclose(float(d.sum()), a.sum(), rtol=1e-10)
    np.testing.assert_allclose(d.mean(axis=0).get(), a.mean(axis=0), rtol=1e-10)
    np.testing.assert_array_equal(d.argmax(axis=1).get(), a.argmax(axis=1))
    assert float(d.max()) == a.max() and bool((d < 1).all())


@case
def indexing():
    a = RNG.integers(0, 100, (50, 60))
    d = cp.asarray(a)
    rows = RNG.integers(0, 50, 20)
    np.testing.assert_array_equal(d[cp.asarray(rows), ::3].get(), a[rows, ::3])
    np.testing.assert_array_equal(d[d > 70].get(), a[a > 70])
    d[d < 10] = -1
    np.testing.assert_array_equal(d.get(), np.where(a < 10, -1, a))


@case
def shapes():
    a = np.arange(24.0).reshape(2, 3, 4)
    d = cp.asarray(a)
    np.testing.assert_array_equal(d.transpose(2, 0, 1).get(), a.transpose(2, 0, 1))
    np.testing.assert_array_equal(cp.concatenate([d, d], axis=1).get(), np.concatenate([a, a], axis=1))
    np.testing.assert_array_equal((d[:, :, None] + d[:, None]).get(), a[:, :, None] + a[:, None])


@case
def scans():
    # Sorts are left out: CuPy brings them as machine code, which a device that runs PTX refuses.
    a = RNG.integers(0, 1000, 3000)
    d = cp.asarray(a)
    np.testing.assert_array_equal(cp.cumsum(d).get(), np.cumsum(a))
    np.testing.assert_array_equal(cp.bincount(d, minlength=1000).get(), np.bincount(a, minlength=1000))


@case
def elementwise_kernel():
    kernel = cp.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = (x - y) * (x - y)", "squared_difference")
    a, b = RNG.random((2, 777), dtype=np.float32)
    np.testing.assert_array_equal(kernel(cp.asarray(a), cp.asarray(b)).get(), (a - b) * (a - b))


@case
def reduction_kernel():
    norm = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm")
    a = RNG.random(4000)
    np.testing.assert_allclose(float(norm(cp.asarray(a))), np.sqrt((a * a).sum()), rtol=1e-10)


@case
def raw_kernel():
    kernel = cp.RawKernel(r"""
    extern "C" __global__ void reverse(const int *in, int *out, int n) {
        __shared__ int part[128];
        int i = blockIdx.x * 128 + threadIdx.x;
        part[threadIdx.x] = i < n ? in[i] : 0;
        __syncthreads();
        int j = n - 1 - (blockIdx.x * 128 + 127 - threadIdx.x);
        if (j >= 0 && blockIdx.x * 128 + 127 - threadIdx.x < n) out[j] = part[127 - threadIdx.x];
    }""", "reverse")
    a = np.arange(1000, dtype=np.int32)
    out = cp.zeros(1000, cp.int32)
    kernel((8,), (128,), (cp.asarray(a), out, np.int32(1000)))
    np.testing.assert_array_equal(out.get(), a[::-1])


@case
def streams_and_events():
    stream = cp.cuda.Stream(non_blocking=True)
    begin, end = cp.cuda.Event(), cp.cuda.Event()
    with stream:
        begin.record()
        d = cp.arange(100_000, dtype=cp.float32) * 2
        end.record()
    end.synchronize()
    assert cp.cuda.get_elapsed_time(begin, end) >= 0
    np.testing.assert_array_equal(d.get(), np.arange(100_000, dtype=np.float32) * 2)


@case
def memory_is_the_virtual_gpus():
    free, total = cp.cuda.Device().mem_info
    assert total <= 1 << 30 and free <= total
    try:
        cp.zeros(total, cp.uint8)
    except cp.cuda.memory.OutOfMemoryError:
        return
    raise AssertionError("more memory than the virtual GPU has")


def main():
    print(f"CuPy {cp.__version__}")
    for function in CASES:
        if len(sys.argv) > 1 and sys.argv[1] not in function.__name__:
            continue
        function()
        print(f"  {function.__name__}", flush=True)
    print("ok")


if __name__ == "__main__":
    main()
