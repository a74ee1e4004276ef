"""CuPy arrays, a raw kernel, cuBLAS, cuFFT; prints ok."""
import cupy as cp, numpy as np
x = cp.arange(100000, dtype=cp.float32); assert float(x.sum()) == float(np.arange(100000, dtype=np.float32).sum(dtype=np.float64)) or abs(float(x.sum()) / 4999950000 - 1) < 1e-5
a = cp.random.rand(256, 256, dtype=cp.float32); assert cp.allclose(a @ a, cp.asarray(cp.asnumpy(a) @ cp.asnumpy(a)), atol=1e-2); assert cp.allclose(cp.fft.ifft(cp.fft.fft(x[:4096])).real, x[:4096], atol=0.1)
k = cp.RawKernel('extern "C" __global__ void sq(float* p, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) p[i] *= p[i]; }', 'sq'); y = cp.arange(1000, dtype=cp.float32); k((4,), (256,), (y, np.int32(1000))); assert float(y[31]) == 961; print("ok")
