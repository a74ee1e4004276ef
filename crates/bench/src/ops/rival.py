"""What the compute library is compared with. PyTorch on a card: reads a JSON list of cases, prints a JSON object of seconds by
name; {"": WHAT} says what was measured. NumPy, with the argument "rounds": prints what it is, then for each case that it reads,
a line each, the seconds of one round."""
import json, os, sys, time


def numpy_product(c):
    b, m, n, k = c["shape"]
    x, y = numpy.random.rand(m, k).astype("f4"), numpy.random.rand(k, n).astype("f4")
    out = numpy.empty((m, n), "f4")
    return lambda: numpy.matmul(x, y, out=out)


if sys.argv[1:] == ["rounds"]:
    import numpy
    print("NumPy", numpy.__version__, flush=True)
    known, work = None, None
    for line in sys.stdin:
        c = json.loads(line)
        if c["name"] != known:
            known, work = c["name"], numpy_product(c)
            for _ in range(3):
                work()
        start = time.perf_counter(); work(); once = max(time.perf_counter() - start, 1e-6)
        n = max(1, int(0.2 / once))
        start = time.perf_counter()
        for _ in range(n):
            work()
        print((time.perf_counter() - start) / n, flush=True)
    sys.exit()

cases = json.load(sys.stdin)
answer = {}
try:
    import torch
    cuda = torch.cuda.is_available()
except ImportError:
    cuda = False
if not cuda:
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


def by_cublaslt(c, kind):
    """cuBLASLt called directly: its first algorithm for the transposed product, in columns."""
    import ctypes as C
    torch.matmul(torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda"))
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libcublasLt.so" in line)
    lt, p = C.CDLL(path), C.c_void_p
    def ok(code):
        if code:
            raise RuntimeError(f"cuBLASLt returned {code}")
    b, m, n, k = c["shape"]
    if c["dtype"] == "i8":
        x, y = torch.randint(-100, 100, (m, k), device="cuda", dtype=kind), torch.randint(-100, 100, (n, k), device="cuda", dtype=kind)
    else:
        x, y = (torch.rand(m, k, device="cuda") * 2 - 1).to(kind), (torch.rand(k, n, device="cuda") * 2 - 1).to(kind)
    out = torch.empty(m, n, device="cuda", dtype=torch.int32 if c["dtype"] == "i8" else kind)
    types = {torch.float32: 0, torch.float16: 2, torch.int8: 3, torch.int32: 10, torch.bfloat16: 14}
    compute = {"tf32": 77, "i8": 72}.get(c["dtype"], 68)
    handle, op, la, lb, ld, wish = p(), p(), p(), p(), p(), p()
    ok(lt.cublasLtCreate(C.byref(handle)))
    ok(lt.cublasLtMatmulDescCreate(C.byref(op), compute, 10 if c["dtype"] == "i8" else 0))
    turn = C.c_int(1 if c["dtype"] == "i8" else 0)
    ok(lt.cublasLtMatmulDescSetAttribute(op, 3, C.byref(turn), C.c_size_t(4)))
    u = C.c_uint64
    rows, cols = (k, n) if turn.value else (n, k)
    ok(lt.cublasLtMatrixLayoutCreate(C.byref(la), types[kind], u(rows), u(cols), C.c_int64(rows)))
    ok(lt.cublasLtMatrixLayoutCreate(C.byref(lb), types[kind], u(k), u(m), C.c_int64(k)))
    ok(lt.cublasLtMatrixLayoutCreate(C.byref(ld), types[out.dtype], u(n), u(m), C.c_int64(n)))
    ok(lt.cublasLtMatmulPreferenceCreate(C.byref(wish)))
    size = u(32 << 20)
    ok(lt.cublasLtMatmulPreferenceSetAttribute(wish, 1, C.byref(size), C.c_size_t(8)))
    found, count = (C.c_uint64 * 12)(), C.c_int()
    ok(lt.cublasLtMatmulAlgoGetHeuristic(handle, op, la, lb, ld, ld, wish, 1, found, C.byref(count)))
    space = torch.empty(32 << 20, device="cuda", dtype=torch.uint8)
    one, zero = (C.c_int(1), C.c_int(0)) if c["dtype"] == "i8" else (C.c_float(1), C.c_float(0))
    places = [p(t.data_ptr()) for t in (y, x, out, out)]
    stream = p(torch.cuda.current_stream().cuda_stream)
    keep = (x, y, out, space)
    def run(keep=keep):
        ok(lt.cublasLtMatmul(handle, op, C.byref(one), places[0], la, places[1], lb, C.byref(zero), places[2], ld, places[3], ld,
                             found, p(space.data_ptr()), C.c_size_t(found[8]), stream))
    return run


def on_card(c):
    if c["dtype"] == "i4":
        raise RuntimeError("PyTorch has no product of 4-bit integers")
    kind = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8}[c["dtype"]]
    torch.backends.cuda.matmul.allow_tf32 = c["dtype"] == "tf32"
    make = lambda *s: torch.randn(*s, device="cuda").to(kind)
    s = c["shape"]
    if c["kind"] == "library":
        return by_cublaslt(c, kind)
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
    if c["kind"] in ("attention", "gradients"):
        b, h, q, d = s
        x, y, z = make(b, h, q, d), make(b, h, q, d), make(b, h, q, d)
        from torch.nn.attention import SDPBackend, sdpa_kernel
        back = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[c["rival"]]
        if c["kind"] == "gradients":
            inputs = [t.requires_grad_() for t in (x, y, z)]
            with sdpa_kernel(back):
                out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=c["causal"])
            dout = torch.randn_like(out)
            return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)
        def run():
            with sdpa_kernel(back):
                torch.nn.functional.scaled_dot_product_attention(x, y, z, is_causal=c["causal"])
        return run
    if c["kind"] == "conv":
        n, channels, size, outputs = s
        torch.backends.cudnn.benchmark = True
        x = make(n, channels, size, size).to(memory_format=torch.channels_last)
        w = make(outputs, channels, 3, 3).to(memory_format=torch.channels_last)
        return lambda: torch.nn.functional.conv2d(x, w, padding=1)
    x = make(*s)
    if c["kind"] == "gelu":
        return lambda: torch.nn.functional.gelu(x)
    if c["kind"] == "softmax":
        return lambda: torch.softmax(x, -1)
    w, b = make(s[-1]), make(s[-1])
    return lambda: torch.nn.functional.layer_norm(x, (s[-1],), w, b)


for c in cases:
    try:
        answer[c["name"]] = timed(on_card(c), torch.cuda.synchronize)
    except Exception as e:  # one case that cannot run leaves the others
        print(c["name"], e, file=sys.stderr)
answer[""] = f"PyTorch {torch.__version__}"
print(json.dumps(answer))
