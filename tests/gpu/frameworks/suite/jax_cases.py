"""JAX: jit, grad, vmap, cuDNN convolutions and attention, cuSOLVER, cuFFT, loops, random numbers, donation, callbacks, Pallas.

XLA measures kernels for a matrix product and keeps the fastest, in TF32 by default: cases with products have a tolerance."""
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from case import case

# JAX would go on with the CPU. SUITE_DEVICE=cpu tries the cases themselves where there is no GPU.
if jax.default_backend() != os.environ.get("SUITE_DEVICE", "gpu"):
    raise RuntimeError(f"JAX found no GPU, only {jax.devices()}")


def healthy():
    jax.block_until_ready(jnp.ones(8) + 1)


def rand(*shape, seed=0, dtype=np.float32):
    """Numbers that are the same everywhere: drawn by numpy."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).astype(dtype)


def close(got, want, most):
    got, want = np.asarray(got).astype(np.complex128), np.asarray(want).astype(np.complex128)
    error = np.linalg.norm((got - want).ravel()) / np.linalg.norm(want.ravel())
    assert error < most, f"relative error {error:.3g}"
    return jnp.asarray(got if np.abs(got.imag).any() else got.real)


def double(x):
    return np.asarray(x).astype(np.float64)


@case
def jit():
    x = rand(1000, 100)
    got = jax.jit(lambda t: jnp.tanh(t * 2 + 1).sum(1))(x)
    return close(got, np.tanh(double(x) * 2 + 1).sum(1), 1e-5)


@case(tolerance=1e-2)
def grad():
    w, x = rand(50, 20), rand(200, 50, seed=1)
    loss = jax.jit(jax.value_and_grad(lambda weights: jnp.mean(jnp.tanh(x @ weights) ** 2)))
    value, slope = loss(w)
    hidden = np.tanh(double(x) @ double(w))
    want = double(x).T @ (2 * hidden * (1 - hidden**2)) / hidden.size
    return value, close(slope, want, 1e-2)


@case(tolerance=1e-2)
def vmap_and_hessian():
    w, xs = rand(10), rand(33, 10, seed=1)

    def loss(weights, x):
        return jnp.tanh(weights @ x) ** 2

    return jax.vmap(jax.grad(loss), (None, 0))(w, xs), jax.hessian(loss)(w, xs[0]), jax.jvp(lambda p: loss(p, xs[1]), (w,), (w,))


@case(tolerance=2e-2)
def matmul_precisions():
    results = []
    for dtype, most in ((jnp.float32, 1e-2), (jnp.bfloat16, 2e-2), (jnp.float16, 5e-3)):
        a, b = rand(512, 512, seed=1, dtype=dtype), rand(512, 512, seed=2, dtype=dtype)
        results.append(close(jax.jit(jnp.matmul)(a, b), double(a) @ double(b), most))
    a = rand(4, 100, 70, seed=3)
    exact = jnp.einsum("bij,bkj->bik", a, a, precision=lax.Precision.HIGHEST)
    return results, close(exact, np.einsum("bij,bkj->bik", double(a), double(a)), 1e-5)


@case(tolerance=2e-2)
def convolution():
    x, w = rand(4, 8, 32, 32), rand(16, 8, 3, 3, seed=1)

    @jax.jit
    def both(kernel):
        return jax.value_and_grad(lambda k: jnp.mean(lax.conv_general_dilated(x, k, (1, 1), "SAME") ** 2))(kernel)

    value, slope = both(w)
    half = lax.conv_general_dilated(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), (2, 2), "VALID")
    return value, slope, close(half, lax.conv_general_dilated(x, w, (2, 2), "VALID", precision=lax.Precision.HIGHEST), 2e-2)


@case(tolerance=1e-3)
def linalg():
    tall, square = rand(60, 40), rand(40, 40, seed=1)
    positive = jnp.matmul(square, square.T, precision=lax.Precision.HIGHEST) + 40 * jnp.eye(40)
    u, s, v = jnp.linalg.svd(tall, full_matrices=False)
    close(jnp.matmul(u * s, v, precision=lax.Precision.HIGHEST), tall, 1e-4)
    values, _ = jnp.linalg.eigh(positive)
    factor = jnp.linalg.cholesky(positive)
    close(jnp.matmul(factor, factor.T, precision=lax.Precision.HIGHEST), positive, 1e-4)
    batch = jnp.stack([positive, positive * 2])
    return s, values, factor, jnp.abs(jnp.linalg.qr(tall)[1]), jnp.linalg.solve(positive, tall.T[:, :5]), jnp.linalg.inv(batch), jnp.linalg.slogdet(positive)[1]


@case
def fft():
    x, image = rand(8, 4096), rand(3, 60, 48, seed=1)
    return close(jnp.fft.fft(x).real, np.fft.fft(double(x)).real, 1e-5), close(jnp.fft.irfft2(jnp.fft.rfft2(image)), image, 1e-5)


@case(tolerance=1e-2)
def loops():
    """scan, while and cond; XLA may run them as graphs."""
    xs = rand(100, 16)
    last, path = jax.jit(lambda t: lax.scan(lambda carry, x: (carry * 0.9 + x, carry.sum()), jnp.zeros(16), t))(xs)
    count = jax.jit(lambda n: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 1.01), (0, 1.0)))(500)
    picked = jax.jit(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x))(xs)
    state = np.zeros(16)
    for x in double(xs):
        state = state * 0.9 + x
    return close(last, state, 1e-5), path, count, picked, lax.fori_loop(0, 20, lambda i, x: x @ x / jnp.linalg.norm(x), rand(16, 16, seed=2))


@case
def random_numbers():
    key = jax.random.key(42)
    parts = jax.random.split(key, 5)
    normal = jax.random.normal(parts[0], (100000,))
    assert abs(float(normal.mean())) < 0.02
    return normal, jax.random.uniform(parts[1], (1000,)), jax.random.permutation(parts[2], 1000), jax.random.categorical(parts[3], rand(100, 10)), jax.random.gamma(parts[4], 2.0, (1000,))


@case
def sort_and_scatter():
    x = rand(50000)
    index = jnp.asarray(np.random.default_rng(1).integers(0, 100, 5000))
    ordered = jnp.sort(x)
    assert (np.asarray(ordered) == np.sort(np.asarray(x))).all()
    return ordered, jnp.argsort(x), lax.top_k(x, 20), jnp.zeros(100, jnp.int32).at[index].add(1), jnp.cumsum(x), jnp.unique(index), jnp.searchsorted(ordered, x[:50]), jax.ops.segment_max(x[:5000], index, 100)


@case
def donated_buffers():
    step = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
    x = jnp.zeros(1 << 20)
    first = x
    for _ in range(10):
        x = step(x)
    assert first.is_deleted() and float(x[0]) == 1023
    return x


@case
def callbacks():
    """The host computes a part, and a text is printed from compiled code."""
    seen = []

    @jax.jit
    def function(x):
        y = jax.pure_callback(lambda a: np.asarray(a) * 3, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        jax.debug.callback(lambda total: seen.append(float(total)), y.sum())
        return y + 1

    out = function(jnp.arange(10.0))
    jax.effects_barrier()
    assert seen == [135.0], seen
    return out


@case(tolerance=5e-2)
def training_steps():
    """A small network with momentum, its whole step compiled and its buffers donated."""
    sizes = (32, 128, 128, 8)
    weights = [rand(a, b, seed=a + b) / np.sqrt(a) for a, b in zip(sizes, sizes[1:])]
    state = weights, [jnp.zeros_like(one) for one in weights]
    x, y = rand(256, 32, seed=1), rand(256, 8, seed=2)

    def loss(layers):
        hidden = x
        for one in layers[:-1]:
            hidden = jax.nn.gelu(hidden @ one)
        return jnp.mean((hidden @ layers[-1] - y) ** 2)

    def step(state):
        value, slope = jax.value_and_grad(loss)(state[0])
        speed = [0.9 * v - 0.05 * g for v, g in zip(state[1], slope)]
        return ([w + v for w, v in zip(state[0], speed)], speed), value

    step, losses = jax.jit(step, donate_argnums=0), []
    for _ in range(30):
        state, value = step(state)
        losses.append(value)
    assert losses[-1] < 0.8 * losses[0]
    return jnp.stack(losses)


@case(tolerance=2e-2)
def attention_cudnn():
    q, k, v = (rand(2, 128, 4, 64, seed=seed, dtype=jnp.bfloat16) for seed in (1, 2, 3))

    def total(implementation):
        return jax.jit(lambda a, b, c: jax.nn.dot_product_attention(a, b, c, is_causal=True, implementation=implementation))(q, k, v)

    return close(total("cudnn"), double(total("xla")), 3e-2)


@case
def transfers():
    host = np.arange(3 << 20, dtype=np.float32)
    on_device = jax.device_put(host)
    assert (np.asarray(on_device) == host).all()
    small = [float(jnp.float32(i) + 1) for i in range(20)]
    stats = jax.local_devices()[0].memory_stats()
    assert stats["bytes_in_use"] >= 12 << 20
    return on_device, small


@case
def pinned_host_memory():
    device = jax.devices()[0]
    there, here = (jax.sharding.SingleDeviceSharding(device, memory_kind=kind) for kind in ("pinned_host", "device"))
    x = jax.device_put(jnp.arange(1 << 20, dtype=jnp.float32), there)
    assert x.sharding.memory_kind == "pinned_host"
    return jax.device_put(x, here) + 1


@case(tolerance=1e-2)
def compiled_ahead():
    lowered = jax.jit(lambda a, b: (a @ b).sum()).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32))
    program = lowered.compile()
    assert program.memory_analysis() is not None
    return program(rand(64, 64), jnp.eye(64))


@case(optional=True)
def pallas_kernel():
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    def add(x, y, out):
        out[...] = x[...] + y[...]

    x, y = rand(1024), rand(1024, seed=1)
    call = pallas.pallas_call(add, out_shape=jax.ShapeDtypeStruct((1024,), jnp.float32), compiler_params=triton.CompilerParams(num_warps=4))
    return close(jax.jit(call)(x, y), double(x) + double(y), 1e-6)


@case
def out_of_memory():
    """An allocation that no GPU can serve is refused, and the program goes on."""
    try:
        jax.block_until_ready(jnp.zeros(1 << 40, jnp.uint8))
        raise AssertionError("1 TiB was given")
    except jax.errors.JaxRuntimeError as error:
        assert "RESOURCE_EXHAUSTED" in str(error), error
    return jnp.ones(1 << 20).sum()
