"""Holds memory through a framework until SIGTERM: hold_memory.py torch|jax|cupy; prints held."""
import sys, time
if sys.argv[1] == "torch":
    import torch
    a = [torch.randn(1 << 28, device="cuda") for _ in range(4)]; m = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16); m = m @ m
    q = torch.randn(4, 8, 1024, 64, device="cuda", dtype=torch.float16); torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True); torch.cuda.synchronize()
elif sys.argv[1] == "jax":
    import jax, jax.numpy as jnp
    a = jax.random.normal(jax.random.PRNGKey(0), (4096, 4096)); b = jax.jit(lambda x: jnp.tanh(x @ x).sum())(a).block_until_ready()
else:
    import cupy as cp
    a = [cp.zeros(1 << 28, dtype=cp.float32) for _ in range(4)]; b = cp.random.rand(4096, 4096, dtype=cp.float32); b = b @ b; cp.cuda.Device().synchronize()
print("held", flush=True); time.sleep(600)
