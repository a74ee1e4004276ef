"""CuPy: cuBLAS, cuFFT, cuSOLVER, cuSPARSE, cuRAND, CUB and Thrust; kernels compiled by NVRTC; pools, streams, graphs, textures."""
import cupy as cp
import numpy as np

from case import captured, case


def healthy():
    cp.cuda.Device().synchronize()


def rand(*shape, seed=0, dtype=np.float32):
    """Numbers that are the same everywhere: drawn by numpy."""
    return cp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def close(got, want, most):
    want = np.asarray(want)
    error = np.linalg.norm((cp.asnumpy(got) - want).ravel()) / np.linalg.norm(want.ravel())
    assert error < most, f"relative error {error:.3g}"
    return got


@case
def reductions():
    x = rand(64, 10007)
    host = x.get().astype(np.float64)
    return close(cp.sin(x) * cp.exp(x), np.sin(host) * np.exp(host), 1e-5), close(x.sum(1), host.sum(1), 1e-4), x.argmax(0), cp.cumsum(x, 1), cp.median(x, 0), x.std()


@case(tolerance=1e-3)
def cublas():
    results = []
    for dtype, most in ((np.float32, 1e-5), (np.float64, 1e-12), (np.float16, 5e-3)):
        a, b = rand(256, 200, seed=1, dtype=dtype), rand(200, 300, seed=2, dtype=dtype)
        results.append(close(a @ b, a.get().astype(np.float64) @ b.get().astype(np.float64), most))
    batch = rand(8, 40, 50, seed=3)
    results += [batch @ batch.transpose(0, 2, 1), cp.einsum("bij,bkj->ik", batch, batch), cp.tensordot(batch, batch, ([1, 2], [1, 2])), batch[0] @ batch[0, 0]]
    return results


@case
def cufft():
    x, image = rand(8, 4096, dtype=np.float64), rand(3, 60, 97, seed=1)
    spectrum = cp.fft.fft(x)
    close(spectrum, np.fft.fft(x.get()), 1e-10)
    from cupyx.scipy import fft as scipy_fft

    with scipy_fft.get_fft_plan(spectrum, axes=(1,)):
        planned = scipy_fft.ifft(spectrum, axis=1)
    return spectrum, close(planned.real, x.get(), 1e-10), close(cp.fft.irfft2(cp.fft.rfft2(image), image.shape[1:]), image.get(), 1e-4), scipy_fft.dctn(image)


def positive(n, seed=0):
    a = rand(n, n, seed=seed, dtype=np.float64)
    return a @ a.T + n * cp.eye(n)


@case
def cusolver():
    a, tall = positive(60), rand(80, 30, seed=1, dtype=np.float64)
    u, s, v = cp.linalg.svd(tall, full_matrices=False)
    close((u * s) @ v, tall.get(), 1e-10)
    values, vectors = cp.linalg.eigh(a)
    close((vectors * values) @ vectors.T, a.get(), 1e-10)
    q, r = cp.linalg.qr(tall)
    close(q @ r, tall.get(), 1e-10)
    return s, values, cp.abs(r), cp.linalg.cholesky(a), cp.linalg.solve(a, cp.ones(60)), cp.linalg.inv(a), cp.linalg.lstsq(tall, tall[:, 0] * 2, rcond=None)[0]


@case
def cusparse():
    from cupyx.scipy import sparse
    from cupyx.scipy.sparse.linalg import cg

    dense = rand(120, 90, dtype=np.float64)
    dense[cp.abs(dense) < 1.2] = 0
    matrix = sparse.csr_matrix(dense)
    right = rand(90, 7, seed=1, dtype=np.float64)
    close(matrix @ right, dense.get() @ right.get(), 1e-12)
    square = (matrix @ matrix.T).toarray()
    close(square, dense.get() @ dense.get().T, 1e-12)
    solution, status = cg(sparse.csr_matrix(positive(50)), cp.ones(50), maxiter=200)
    assert status == 0
    return matrix @ right, square, matrix.tocsc().indices, sparse.coo_matrix(dense).data, matrix @ right[:, 0], solution


SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""


@case
def raw_kernel():
    kernel = cp.RawKernel(SAXPY, "saxpy")
    x, y = rand(5000, seed=1), rand(5000, seed=2)
    want = 3 * x.get() + y.get()
    kernel((20,), (256,), (np.float32(3), x, y, np.int32(5000)))
    assert kernel.num_regs > 0 and kernel.max_threads_per_block >= 256
    return close(y, want, 1e-6)


MODULE = r"""
extern "C" { __constant__ int scale; __device__ int total; }
template <typename T> __global__ void times(T* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { x[i] *= scale; atomicAdd(&total, 1); }
}
__global__ void say(int what) { printf("block %d says %d\n", blockIdx.x, what); }
"""


@case
def raw_module():
    module = cp.RawModule(code=MODULE, options=("-std=c++17",), name_expressions=("times<double>", "say"))
    for name, value in (("scale", 5), ("total", 0)):
        cp.ndarray(1, np.int32, module.get_global(name))[...] = value
    x = cp.arange(1000, dtype=np.float64)
    module.get_function("times<double>")((4,), (256,), (x, np.int32(1000)))
    assert int(cp.ndarray(1, np.int32, module.get_global("total"))[0]) == 1000
    return close(x, 5.0 * np.arange(1000), 1e-12)


@case
def printf_text():
    module = cp.RawModule(code=MODULE, options=("-std=c++17",), name_expressions=("say",))
    with captured(1) as text:
        module.get_function("say")((3,), (1,), (np.int32(42),))
        cp.cuda.Device().synchronize()
    lines = sorted(line for line in text[0].splitlines() if "says" in line)
    assert lines == [f"block {block} says 42" for block in range(3)], text[0][:200]
    return lines


COOPERATIVE = r"""
#include <cooperative_groups.h>
extern "C" __global__ void rounds(int* cells, int n) {
    auto grid = cooperative_groups::this_grid();
    int i = grid.thread_rank();
    for (int round = 0; round < 10; round++) {
        int next = cells[(i + 1) % n];
        grid.sync();
        cells[i] = next + 1;
        grid.sync();
    }
}
"""


@case
def cooperative_launch():
    n = 32 * 128
    kernel, cells = cp.RawKernel(COOPERATIVE, "rounds", enable_cooperative_groups=True), cp.arange(n, dtype=np.int32)
    kernel((32,), (128,), (cells, np.int32(n)))
    assert (cells.get() == (np.arange(n) + 10) % n + 10).all()
    return cells


@case
def elementwise_kernel():
    kernel = cp.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "squared_difference")
    x, y = rand(300, 40, seed=1), rand(40, seed=2)
    return close(kernel(x, y), (x.get() - y.get()) ** 2, 1e-6)


@case
def reduction_kernel():
    kernel = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "length")
    x = rand(100, 333, seed=1)
    return close(kernel(x, axis=1), np.linalg.norm(x.get(), axis=1), 1e-5)


@case
def fusion_and_jit():
    from cupyx import jit

    @cp.fuse()
    def fused(x, y):
        return cp.sqrt(x * x + y * y) + 1

    @jit.rawkernel()
    def copied(x, y, size):
        start = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
        step = jit.gridDim.x * jit.blockDim.x
        for at in range(start, size, step):
            y[at] = x[at] * 2

    x, y = rand(1000, seed=1), rand(1000, seed=2)
    out = cp.empty_like(x)
    copied((4,), (64,), (x, out, np.uint32(1000)))
    close(out, 2 * x.get(), 1e-6)
    return fused(x, y), out


@case
def memory_pools():
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        held = [cp.full(1 << 20, step, dtype=np.float32) for step in range(8)]
        used = pool.used_bytes()
        sums = [one.sum() for one in held]
        del held
    pool.free_all_blocks()
    pool.set_limit(size=1 << 24)
    try:
        with cp.cuda.using_allocator(pool.malloc):
            cp.zeros(1 << 25, dtype=np.uint8)
        raise AssertionError("the pool's limit was passed")
    except cp.cuda.memory.OutOfMemoryError:
        pass
    return used, sums


@case
def async_pool():
    pool = cp.cuda.MemoryAsyncPool()
    with cp.cuda.using_allocator(pool.malloc):
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            total = cp.zeros(1)
            for step in range(1, 30):
                total += cp.ones(step * 10000).sum()
        stream.synchronize()
        assert pool.used_bytes() > 0
        result = float(total[0])
        del total
    assert result == 10000 * 29 * 30 / 2
    return result


@case
def streams_and_events():
    begin, end, stream = cp.cuda.Event(), cp.cuda.Event(), cp.cuda.Stream(non_blocking=True)
    a = rand(800, 800, seed=1)
    cp.cuda.Device().synchronize()
    called = []
    with stream:
        begin.record()
        for _ in range(5):
            b = a @ a
        end.record()
        stream.launch_host_func(called.append, "called")
    stream.synchronize()
    assert cp.cuda.get_elapsed_time(begin, end) > 0 and end.done and stream.done
    return called, b


@case
def graphs():
    stream, a = cp.cuda.Stream(non_blocking=True), rand(1000, seed=1)
    out = cp.empty_like(a)
    cp.cuda.Device().synchronize()
    with stream:
        # Compiled before the capture.
        cp.multiply(a, 3, out=out)
        cp.add(out, 1, out=out)
        stream.synchronize()
        stream.begin_capture()
        cp.multiply(a, 3, out=out)
        cp.add(out, 1, out=out)
        graph = stream.end_capture()
        graph.upload()
        results = []
        for step in range(3):
            a += step
            graph.launch()
            results.append(out.copy())
    stream.synchronize()
    return close(results[-1], a.get() * 3 + 1, 1e-6), results


@case
def curand():
    cp.random.seed(7)
    old = cp.random.rand(10000), cp.random.randn(10000), cp.random.randint(0, 100, 1000), cp.random.permutation(500)
    new = cp.random.default_rng(7)
    assert abs(float(old[1].mean())) < 0.05
    return old, new.random(1000), new.standard_normal(1000), new.integers(0, 50, 1000), new.gamma(2.0, size=1000)


@case
def sort_and_search():
    x, keys = rand(100000, seed=1), cp.asarray(np.random.default_rng(0).integers(0, 50, 20000))
    ordered = cp.sort(x)
    assert (ordered.get() == np.sort(x.get())).all()
    values, counts = cp.unique(keys, return_counts=True)
    return ordered, cp.argsort(x), values, counts, cp.partition(x, 100)[100], cp.lexsort(cp.stack([x[:1000], x[1000:2000]])), cp.searchsorted(ordered, x[:50]), cp.bincount(keys), cp.nonzero(keys > 40)[0]


@case
def managed_memory():
    """Four MiB, read and written by the device; the host's view is read through its address."""
    import ctypes

    memory = cp.cuda.malloc_managed(4 << 20)
    array = cp.ndarray(1 << 20, np.float32, memory)
    array[...] = cp.arange(1 << 20, dtype=np.float32)
    array += 1
    cp.cuda.Device().synchronize()
    host = np.ctypeslib.as_array((ctypes.c_float * (1 << 20)).from_address(memory.ptr))
    assert host[5] == 6
    host[5] = 100
    assert float(array[5]) == 100
    return array.sum(dtype=np.float64)


TEXTURE = r"""
extern "C" __global__ void sample(float* out, cudaTextureObject_t texture, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) out[y * width + x] = tex2D<float>(texture, x + 1.0f, y + 0.5f);
}
"""


@case
def textures():
    """Linear filtering half-way between two texels of a row."""
    from cupy.cuda import runtime, texture

    width, height = 64, 32
    data = rand(height, width, seed=1)
    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    array = texture.CUDAarray(channel, width, height)
    array.copy_from(data)
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
    clamp = runtime.cudaAddressModeClamp
    view = texture.TextureDescriptor((clamp, clamp), runtime.cudaFilterModeLinear, runtime.cudaReadModeElementType)
    out = cp.empty((height, width), np.float32)
    cp.RawKernel(TEXTURE, "sample")((4, 4), (16, 8), (out, texture.TextureObject(resource, view), np.int32(width), np.int32(height)))
    host = data.get()
    want = (host + np.concatenate([host[:, 1:], host[:, -1:]], 1)) / 2
    return close(out, want, 1e-2)


@case
def pinned_memory():
    import cupyx

    pinned = cupyx.empty_pinned((1 << 20,), np.float32)
    pinned[...] = np.arange(1 << 20)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        on_device = cp.empty(1 << 20, np.float32)
        on_device.set(pinned, stream=stream)
        back = cupyx.zeros_like_pinned(pinned)
        (on_device * 2).get(stream=stream, out=back, blocking=False)
    stream.synchronize()
    assert (back == pinned * 2).all()
    return on_device


@case
def signal_and_image():
    from cupyx.scipy import ndimage, signal, special

    image, line = rand(50, 60, seed=1), rand(1000, seed=2)
    return ndimage.gaussian_filter(image, 2.0), ndimage.zoom(image, 1.5), signal.fftconvolve(line, line[:50]), special.erf(line), special.gammaln(cp.abs(line) + 1), ndimage.label(image > 0)[0]


@case(own=True)
def exchange_with_torch():
    """Two frameworks in one process share memory through DLPack."""
    import torch

    ours = cp.arange(1000, dtype=np.float32)
    theirs = torch.from_dlpack(ours)
    theirs.mul_(2)
    torch.cuda.synchronize()
    assert float(ours[10]) == 20
    back = cp.from_dlpack(torch.ones(100, 100, device="cuda") @ torch.ones(100, 100, device="cuda"))
    return ours, back


@case(own=True)
def illegal_address():
    kernel = cp.RawKernel('extern "C" __global__ void wild(long long at) { *(int*)at = 1; }', "wild")
    try:
        kernel((1,), (1,), (np.int64(64),))
        cp.cuda.Device().synchronize()
        return "no error"
    except cp.cuda.runtime.CUDARuntimeError as error:
        assert "IllegalAddress" in str(error), error
        return str(error)
