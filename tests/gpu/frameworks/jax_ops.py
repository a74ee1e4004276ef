"""JAX with its default preallocation: jit, grad, matmul; prints ok."""
import jax, jax.numpy as jnp
k = jax.random.PRNGKey(0); a = jax.random.normal(k, (512, 512)); f = jax.jit(lambda x: jnp.tanh(x @ x).sum()); g = jax.grad(lambda x: f(x))(a); assert g.shape == (512, 512) and bool(jnp.isfinite(g).all()); s = jax.devices()[0].memory_stats(); print("limit", s.get("bytes_limit", 0) >> 20); print("ok")
