"""torch.compile: Inductor writes Triton kernels and loads them; captured graphs behind reduce-overhead."""
import torch
import torch.nn.functional as functional

from case import case
from torch_math_cases import DEVICE, close, healthy, rand  # noqa: F401
from torch_nn_cases import Block, seeded


@case
def function():
    x = rand(1000, 300, seed=1)

    def plain(t):
        return (t * 2 + 1).relu().softmax(1), t.cumsum(1).sum(0)

    got, want = torch.compile(plain)(x), plain(x.cpu().double())
    return [close(one, other, 1e-4) for one, other in zip(got, want)]


@case(tolerance=2e-2)
def training_step():
    model, x, y = seeded(lambda: Block(128, 4)), rand(4, 64, 128, seed=1), rand(4, 64, 128, seed=2)
    compiled, losses = torch.compile(model), []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = functional.mse_loss(compiled(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().float())
    assert losses[-1] < losses[0]
    return torch.stack(losses)


@case(tolerance=1e-4)
def reduce_overhead():
    """Runs as captured graphs after the second call."""
    model, x = seeded(lambda: Block(64, 4)).eval(), rand(2, 32, 64, seed=1)
    compiled = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        want = model(x)
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            got = compiled(x).clone()
    return close(got, want, 1e-3)


@case(tolerance=2e-2)
def flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as attention

    q, k, v = (rand(1, 4, 256, 64, seed=seed, dtype=torch.float16) for seed in (1, 2, 3))
    mask = create_block_mask(lambda batch, head, row, column: row >= column, None, None, 256, 256, device=DEVICE)
    got = torch.compile(attention)(q, k, v, block_mask=mask)
    return close(got, functional.scaled_dot_product_attention(q, k, v, is_causal=True), 1e-2)
