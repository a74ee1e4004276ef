"""Allocates through a framework until refused, then shows that the program goes on: until_refused.py torch|cupy|jax; prints MiB and ok.
JAX takes what it may once, at its start; what it refuses is its own pool's word."""
import sys
held, got = [], 0
if sys.argv[1] == "torch":
    import torch
    try:
        while True: held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda").fill_(1)); got += 256
    except torch.cuda.OutOfMemoryError: pass
    del held; torch.cuda.empty_cache(); assert torch.ones(1 << 20, device="cuda").sum().item() == 1 << 20
elif sys.argv[1] == "cupy":
    import cupy
    try:
        while True: held.append(cupy.full(256 << 20, 1, dtype=cupy.uint8)); got += 256
    except cupy.cuda.memory.OutOfMemoryError: pass
    del held; cupy.get_default_memory_pool().free_all_blocks(); assert int(cupy.ones(1 << 20, dtype=cupy.int32).sum()) == 1 << 20
else:
    import jax, jax.numpy as jnp
    try:
        while True: held.append(jax.block_until_ready(jnp.full(256 << 20, 1, dtype=jnp.uint8))); got += 256
    except Exception as error: assert "RESOURCE_EXHAUSTED" in str(error), error
    del held; assert int(jnp.ones(1 << 20, dtype=jnp.int32).sum()) == 1 << 20
print("allocated", got); print("ok")
