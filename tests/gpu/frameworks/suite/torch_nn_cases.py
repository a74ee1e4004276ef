"""PyTorch's neural networks: training in three precisions, attention with each kernel family, convolutions, recurrent networks, norms."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from case import case
from torch_math_cases import DEVICE, close, healthy, rand  # noqa: F401


def seeded(make):
    """A module with the same weights everywhere."""
    torch.manual_seed(0)
    return make().to(DEVICE)


def mlp():
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8))


def train(model, x, y, steps=30, dtype=None, scaler=None, optimizer=None, falls_to=0.7):
    """The losses of some steps; the last must have fallen to a part of the first."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype or torch.bfloat16, enabled=dtype is not None):
            loss = functional.mse_loss(model(x), y)
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses).float()
    assert losses[-1] < falls_to * losses[0], losses.tolist()
    return losses


@case(tolerance=1e-3)
def train_fp32():
    return train(seeded(mlp), rand(256, 32, seed=1), rand(256, 8, seed=2))


@case(tolerance=5e-2)
def train_fp16_scaler():
    return train(seeded(mlp), rand(256, 32, seed=1), rand(256, 8, seed=2), dtype=torch.float16, scaler=torch.amp.GradScaler(DEVICE))


@case(tolerance=5e-2)
def train_bf16_autocast():
    return train(seeded(mlp), rand(256, 32, seed=1), rand(256, 8, seed=2), dtype=torch.bfloat16)


@case(tolerance=1e-3)
def optimizers():
    makers = [
        lambda parameters: torch.optim.AdamW(parameters, 1e-2, fused=True),
        lambda parameters: torch.optim.Adam(parameters, 1e-2, foreach=True),
        lambda parameters: torch.optim.SGD(parameters, 3e-1, momentum=0.9, foreach=True),
        lambda parameters: torch.optim.Adam(parameters, 1e-2, capturable=True),
    ]
    results = []
    for make in makers:
        model = seeded(mlp)
        results.append(train(model, rand(256, 32, seed=1), rand(256, 8, seed=2), optimizer=make(model.parameters())))
    model = seeded(mlp)
    functional.mse_loss(model(rand(256, 32, seed=1)), rand(256, 8, seed=2)).backward()
    results.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    return results


def attention(backend, dtype=torch.bfloat16, most=3e-2, causal=True, mask=None):
    """Forward and backward with one family of kernels, against the plain formula in single precision."""
    shape = (2, 4, 256, 64)
    q, k, v = (rand(*shape, seed=seed, dtype=dtype).requires_grad_() for seed in (1, 2, 3))
    with sdpa_kernel(backend):
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    out.backward(rand(*shape, seed=4, dtype=dtype))
    fq, fk, fv = (one.detach().float().requires_grad_() for one in (q, k, v))
    scores = fq @ fk.mT / 8
    if causal:
        scores = scores.masked_fill(torch.ones(256, 256, device=DEVICE, dtype=torch.bool).triu(1), float("-inf"))
    if mask is not None:
        scores = scores + mask.float()
    want = scores.softmax(-1) @ fv
    want.backward(rand(*shape, seed=4, dtype=dtype).float())
    close(out.detach(), want.detach(), most)
    return out, [close(got.grad, one.grad, most) for got, one in ((q, fq), (k, fk), (v, fv))]


@case(tolerance=2e-2)
def sdpa_flash():
    return attention(SDPBackend.FLASH_ATTENTION), attention(SDPBackend.FLASH_ATTENTION, torch.float16, causal=False)


@case(tolerance=2e-2)
def sdpa_cudnn():
    return attention(SDPBackend.CUDNN_ATTENTION), attention(SDPBackend.CUDNN_ATTENTION, torch.float16, causal=False)


@case(tolerance=2e-2)
def sdpa_efficient():
    mask = rand(2, 4, 256, 256, seed=9, dtype=torch.bfloat16)
    return attention(SDPBackend.EFFICIENT_ATTENTION, torch.float32, 5e-3), attention(SDPBackend.EFFICIENT_ATTENTION, causal=False, mask=mask)


@case(tolerance=2e-2)
def sdpa_math():
    return attention(SDPBackend.MATH), attention(SDPBackend.MATH, torch.float32, 1e-3)


def convolution(layer, shape, most=5e-3, dtype=torch.float32, layout=torch.contiguous_format):
    """Forward and backward of one layer, against the CPU in double precision."""
    torch.manual_seed(0)
    layer.reset_parameters()
    reference = copy.deepcopy(layer).double()
    model = layer.to(DEVICE, dtype).to(memory_format=layout)
    x = rand(*shape, seed=1, dtype=dtype).to(memory_format=layout).requires_grad_()
    out = model(x)
    (out.float().square().sum() / 100).backward()
    wanted = x.detach().cpu().double().requires_grad_()
    result = reference(wanted)
    (result.square().sum() / 100).backward()
    close(out.detach(), result.detach(), most)
    return out, close(x.grad, wanted.grad, most), close(model.weight.grad, reference.weight.grad, most)


@case(tolerance=1e-3)
def conv2d():
    torch.backends.cudnn.benchmark = False
    return convolution(nn.Conv2d(16, 32, 3, padding=1), (4, 16, 28, 28)), convolution(nn.Conv2d(3, 8, 7, stride=2), (4, 3, 65, 65))


@case(tolerance=1e-2)
def conv2d_benchmark():
    """cuDNN measures its kernels and keeps the fastest, which need not be the same twice."""
    torch.backends.cudnn.benchmark = True
    try:
        return convolution(nn.Conv2d(32, 64, 3, padding=1), (8, 32, 32, 32))
    finally:
        torch.backends.cudnn.benchmark = False


@case(tolerance=1e-2)
def conv2d_half():
    return convolution(nn.Conv2d(32, 64, 3, padding=1), (4, 32, 24, 24), 1e-2, torch.float16, torch.channels_last)


@case(tolerance=1e-3)
def conv3d_transposed():
    return convolution(nn.Conv3d(4, 8, 3, padding=1), (2, 4, 12, 12, 12)), convolution(nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1), (2, 8, 16, 16)), convolution(nn.Conv1d(8, 16, 5), (4, 8, 100))


@case(tolerance=1e-3)
def conv_grouped():
    return convolution(nn.Conv2d(32, 32, 3, groups=32, padding=1), (2, 32, 20, 20)), convolution(nn.Conv2d(8, 8, 3, dilation=2), (2, 8, 20, 20))


def recurrent(make):
    """Two layers, both directions: output, last state and a gradient, against the CPU."""
    torch.manual_seed(0)
    model = make(24, 32, num_layers=2, bidirectional=True, batch_first=True)
    x = rand(8, 40, 24, seed=1)
    want = copy.deepcopy(model).double()(x.cpu().double())[0].detach()
    model = model.to(DEVICE)
    out, state = model(x)
    out.square().mean().backward()
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([40, 33, 30, 21, 20, 9, 4, 1]), batch_first=True)
    return close(out.detach(), want, 1e-2), state, model.weight_hh_l0.grad, model(packed)[0].data


@case(tolerance=1e-3)
def lstm():
    return recurrent(nn.LSTM)


@case(tolerance=1e-3)
def gru():
    return recurrent(nn.GRU)


@case(tolerance=1e-3)
def rnn():
    return recurrent(nn.RNN)


@case(tolerance=1e-4)
def norms():
    x = rand(16, 32, 14, 14, seed=1).requires_grad_()
    batch = seeded(lambda: nn.BatchNorm2d(32))
    out = batch(x)
    group, layer = seeded(lambda: nn.GroupNorm(4, 32))(x), seeded(lambda: nn.LayerNorm([32, 14, 14]))(x)
    (out * rand(16, 32, 14, 14, seed=2)).sum().backward()
    batch.eval()
    close(out.detach().mean((0, 2, 3)) + 1, torch.ones(32), 1e-4)
    return out, x.grad, batch(x), batch.running_var, group, layer, functional.rms_norm(x, (14,))


@case(tolerance=1e-3)
def losses():
    torch.manual_seed(0)
    scores = rand(50, 16, 20, seed=1).log_softmax(2).requires_grad_()
    # Targets in a row on the CPU are cuDNN's; in a matrix on the device, PyTorch's own.
    targets = torch.randint(1, 20, (160,), dtype=torch.int32)
    lengths = torch.full((16,), 50, dtype=torch.int32), torch.full((16,), 10, dtype=torch.int32)
    ctc = functional.ctc_loss(scores, targets.long().to(DEVICE), *(one.long().to(DEVICE) for one in lengths))
    own = functional.ctc_loss(scores.detach(), targets.view(16, 10).long().to(DEVICE), *(one.long().to(DEVICE) for one in lengths))
    close(ctc.detach(), own, 1e-3)
    ctc.backward()
    labels = torch.randint(0, 20, (50,)).to(DEVICE)
    logits = rand(50, 20, seed=2)
    return ctc, scores.grad, functional.cross_entropy(logits, labels), functional.multi_margin_loss(logits, labels), functional.kl_div(logits.log_softmax(1), logits.flip(0).softmax(1), reduction="batchmean")


@case(tolerance=1e-3)
def transforms():
    """torch.func: per-sample gradients, a Hessian, forward mode; and a double backward."""
    from torch.func import grad, hessian, jvp, vmap

    w, xs = rand(10, seed=1), rand(33, 10, seed=2)

    def loss(weights, x):
        return (torch.tanh(weights @ x) ** 2).sum()

    z = rand(100, seed=3).requires_grad_()
    (first,) = torch.autograd.grad((z**3).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    close(second.detach(), 6 * z.detach().cpu().double(), 1e-5)
    return vmap(grad(loss), (None, 0))(w, xs), hessian(loss)(w, xs[0]), jvp(lambda p: loss(p, xs[1]), (w,), (w,))[1], second


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.second(x))


@case(tolerance=5e-2)
def transformer_large():
    """Six blocks of width 1024 on 8192 tokens: about 75 million weights."""
    model = seeded(lambda: nn.Sequential(*[Block(1024, 16) for _ in range(6)]))
    x, y = rand(8, 1024, 1024, seed=1, dtype=torch.float32), rand(8, 1024, 1024, seed=2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    return train(model, x, y, 4, torch.bfloat16, optimizer=optimizer, falls_to=2.0)


@case(tolerance=1e-3)
def checkpointing():
    from torch.utils.checkpoint import checkpoint

    model = seeded(lambda: Block(64, 4))
    x = rand(2, 32, 64, seed=1).requires_grad_()
    model(x).square().mean().backward()
    plain, x.grad = x.grad, None
    checkpoint(model, x, use_reentrant=False).square().mean().backward()
    return close(x.grad, plain, 1e-4)


@case(tolerance=2e-2)
def nested_tensors():
    parts = [rand(length, 4, 64, seed=length, dtype=torch.float16) for length in (5, 130, 64)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    q = jagged.transpose(1, 2)
    out = functional.scaled_dot_product_attention(q, q, q)
    linear = seeded(lambda: nn.Linear(64, 16)).half()(jagged)
    return [one.contiguous() for one in out.unbind()], [one.contiguous() for one in linear.unbind()]
