"""What the compute library is compared with: PyTorch on a card, else NumPy. Reads a JSON list of cases, prints a JSON object of
seconds by name; {"": WHAT} says what was measured."""
import json, os, sys, time

cases = json.load(sys.stdin)
answer = {}
try:
    import torch
    cuda = torch.cuda.is_available()
except ImportError:
    cuda = False
if not cuda and any(c["on"] == "card" for c in cases):
    sys.exit("no PyTorch with CUDA here")


def timed(work, wait, seconds=0.4):
    for _ in range(3):
        work()
    wait()
    start = time.perf_counter(); work(); wait(); once = max(time.perf_counter() - start, 1e-6)
    best = []
    for _ in range(5):
        n = max(1, int(seconds / 5 / once))
        start = time.perf_counter()
        for _ in range(n):
            work()
        wait()
        best.append((time.perf_counter() - start) / n)
    return sorted(best)[len(best) // 2]


def on_card(c):
    kind = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8}[c["dtype"]]
    torch.backends.cuda.matmul.allow_tf32 = c["dtype"] == "tf32"
    make = lambda *s: torch.randn(*s, device="cuda").to(kind)
    s = c["shape"]
    if c["kind"] == "gemm":
        b, m, n, k = s
        if c["dtype"] == "i8":
            x = torch.randint(-100, 100, (m, k), device="cuda", dtype=torch.int8); y = torch.randint(-100, 100, (n, k), device="cuda", dtype=torch.int8).t()
            return lambda: torch._int_mm(x, y)
        x, y = make(b, m, k), make(b, k, n)
        if b == 1:
            x, y = x[0], y[0]
        out = torch.matmul(x, y)
        return lambda: torch.matmul(x, y, out=out)
    if c["kind"] == "attention":
        b, h, q, d = s
        x, y, z = make(b, h, q, d), make(b, h, q, d), make(b, h, q, d)
        from torch.nn.attention import SDPBackend, sdpa_kernel
        back = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[c["rival"]]
        def run():
            with sdpa_kernel(back):
                torch.nn.functional.scaled_dot_product_attention(x, y, z, is_causal=c["causal"])
        return run
    x = make(*s)
    if c["kind"] == "gelu":
        return lambda: torch.nn.functional.gelu(x)
    if c["kind"] == "softmax":
        return lambda: torch.softmax(x, -1)
    w, b = make(s[-1]), make(s[-1])
    return lambda: torch.nn.functional.layer_norm(x, (s[-1],), w, b)


def on_processor(c):
    import numpy
    if c["kind"] != "gemm":
        return None
    b, m, n, k = c["shape"]
    x, y = numpy.random.rand(m, k).astype("f4"), numpy.random.rand(k, n).astype("f4")
    out = numpy.empty((m, n), "f4")
    return lambda: numpy.matmul(x, y, out=out)


for c in cases:
    try:
        work = on_card(c) if cuda else on_processor(c)
        if work:
            answer[c["name"]] = timed(work, torch.cuda.synchronize if cuda else lambda: None)
    except Exception as e:  # one case that cannot run leaves the others
        print(c["name"], e, file=sys.stderr)
if cuda:
    answer[""] = f"PyTorch {torch.__version__}"
else:
    import numpy
    answer[""] = f"NumPy {numpy.__version__}"
print(json.dumps(answer))
