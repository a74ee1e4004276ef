"""The speed of PyTorch in one process; prints one JSON object. Run natively and under `mica run`, in turns, and compare.

first_result_ms  from `import torch` to the first number that comes back from the GPU
gemm_tflops      a loop of bf16 products of 8192 × 8192 matrices
large_train_ms   a training step that keeps the GPU busy: eight layers 2048 wide, 8192 tokens
small_train_ms   a training step that is bound by its launches: six layers 512 wide, 4096 tokens
infer_ms         an inference step of the small model, 256 tokens
graph_infer_ms   the same step as a CUDA graph

Steps are medians of single steps, each with a wait at its end."""
import json
import statistics
import time

begun = time.perf_counter()
import torch
from torch import nn

first = torch.ones(4, device="cuda").sum().item()
first_result_ms = (time.perf_counter() - begun) * 1e3
assert first == 4.0, first

DEVICE = "cuda"
torch.manual_seed(0)


def timed(step):
    begun = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e3


def median_ms(step, warm, count):
    for _ in range(warm):
        timed(step)
    return statistics.median(timed(step) for _ in range(count))


def encoder(width, layers):
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(DEVICE)


def training(width, layers, batch, tokens):
    """A step of training, and the model."""
    model = encoder(width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    x = torch.randn(batch, tokens, width, device=DEVICE)
    y = torch.randn(batch, tokens, width, device=DEVICE)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, model


def gemm_tflops():
    size, products = 8192, 20
    a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def loop():
        for _ in range(products):
            torch.mm(a, b, out=out)

    return products * 2 * size**3 / (median_ms(loop, 3, 20) * 1e9)


def inference(model):
    """An inference step of a model, call by call and as a CUDA graph; both must give the same."""
    x = torch.randn(1, 256, 512, device=DEVICE)

    def step():
        # The cache of casts would keep memory of the graph's pool beyond the capture.
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            return model(x)

    plain = median_ms(step, 10, 200)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            want = step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    replayed = median_ms(graph.replay, 10, 200)
    assert torch.allclose(out, want, atol=2e-2), "the graph computes something else"
    return plain, replayed


gemm = gemm_tflops()
large_step, large = training(2048, 8, 8, 1024)
before = large_step().item()
large_train_ms = median_ms(large_step, 5, 20)
assert large_step().item() < before, "the large model does not learn"
del large_step, large
torch.cuda.empty_cache()
small_step, small = training(512, 6, 16, 256)
small_train_ms = median_ms(small_step, 10, 60)
infer_ms, graph_infer_ms = inference(small.eval())
print(
    json.dumps(
        {
            "first_result_ms": first_result_ms,
            "gemm_tflops": gemm,
            "large_train_ms": large_train_ms,
            "small_train_ms": small_train_ms,
            "infer_ms": infer_ms,
            "graph_infer_ms": graph_infer_ms,
        }
    )
)
