"""Small-transformer training and inference steps. Says ready when warm; then, for each line of input:
go     prints the fastest times in milliseconds;
past   prints those of steps whose calls go past Mica to the driver;
turns  prints the ratio of steps through Mica to steps past it, taken in turns in this process."""
import ctypes, glob, json, os, statistics, struct, sys, time
# The core on which all of them are measured, and until then its neighbours: memory must not be nearer to some than to others.
core = sorted(os.sched_getaffinity(0))[:3][-1:]
def cores(text): return {c for part in text.split(",") for c in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}
for node in glob.glob("/sys/devices/system/node/node*/cpulist"):
    near = cores(open(node).read().strip() or "0") & os.sched_getaffinity(0)
    if core[0] in near: os.sched_setaffinity(0, near); break
import torch, torch.nn as nn
torch.manual_seed(0); d = "cuda"
layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0); m = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(d); opt = torch.optim.AdamW(m.parameters(), 1e-4, fused=True)
x = torch.randn(16, 256, 512, device=d); y = torch.randn(16, 256, 512, device=d)
def train():
    opt.zero_grad(set_to_none=True)
    with torch.autocast(d, torch.bfloat16): loss = nn.functional.mse_loss(m(x), y)
    loss.backward(); opt.step(); return loss
def infer():
    with torch.no_grad(), torch.autocast(d, torch.bfloat16): return m(x[:1])
def timed(f):
    a = time.perf_counter(); f(); torch.cuda.synchronize(); return (time.perf_counter() - a) * 1e3
def fastest(f, n):
    for _ in range(2): timed(f)
    return min(timed(f) for _ in range(n))

# Calls whose way leads through Mica: libraries keep what cuGetProcAddress gave them in their variables.
CALLS = """cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel cuGraphLaunch cuMemcpyAsync cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuMemcpyDtoDAsync
cuMemcpy2DAsync cuMemcpy3DAsync cuMemsetD8Async cuMemsetD16Async cuMemsetD32Async cuMemsetD2D8Async cuMemsetD2D32Async cuStreamSynchronize cuCtxSynchronize
cuEventSynchronize cuStreamQuery cuEventQuery cuEventRecord cuEventRecordWithFlags cuCtxGetDevice cuMemGetInfo cuStreamBeginCapture cuStreamEndCapture""".split()
def address(library, call, version, flags):
    found = ctypes.c_uint64(0)
    library.cuGetProcAddress_v2(call.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), None); return found.value
def variables(path, base):
    """Where a library's segments with variables are."""
    file = open(path, "rb").read(4096); start, size, count = struct.unpack_from("<Q", file, 32)[0], *struct.unpack_from("<HH", file, 54)
    for at in range(start, min(start + size * count, 4096 - size + 1), size):
        kind, flags, _, address, _, _, length = struct.unpack_from("<IIQQQQQ", file, at)
        if kind == 1 and flags & 2: yield base + address, base + address + length
def parts(ranges, of):
    return [(max(a, c), min(b, d)) for a, b in ranges for c, d in of if max(a, c) < min(b, d)]
def places():
    """Variables that hold addresses of Mica's functions, each with that address and the driver's."""
    maps = [line.split() for line in open("/proc/self/maps")]
    ours = os.path.dirname(os.path.dirname(os.environ["LD_PRELOAD"].split(":")[0]))
    driver = next(m[5] for m in maps if len(m) > 5 and "/libcuda.so" in m[5] and not m[5].startswith(ours))
    mica, driver = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(driver)
    own = {}
    for call in CALLS:
        for version in (2000, 3020, 4000, 7000, 11000, 12000, 13000):
            for flags in (1, 2):
                a, b = address(mica, call, version, flags), address(driver, call, version, flags)
                if a and b and a != b: own[a] = (b, call)
    found, libraries = [], {m[5]: int(m[0].split("-")[0], 16) for m in reversed(maps) if len(m) > 5 and ".so" in m[5] and int(m[2], 16) == 0}
    writable = [tuple(int(end, 16) for end in m[0].split("-")) for m in maps if m[1].startswith("rw")]
    for path, base in libraries.items():
        # Each of these has the runtime, as a library or in itself.
        if not any(word in os.path.basename(path) for word in ("cudart", "cublas", "cudnn", "torch", "c10", "triton")): continue
        for low, high in parts(variables(path, base), writable):
            memory = ctypes.string_at(low, high - low)
            # Addresses in one library have these bytes in common.
            for upper in {a.to_bytes(8, "little")[3:6] for a in own}:
                at = memory.find(upper)
                while at >= 0:
                    value = int.from_bytes(memory[at - 3:at + 5], "little") if at >= 3 else 0
                    if (at - 3) % 8 == 0 and value in own: found.append((low + at - 3, value, *own[value]))
                    at = memory.find(upper, at + 1)
    if not any(call.startswith("cuLaunchKernel") for *_, call in found): sys.exit("no library holds Mica's cuLaunchKernel")
    return found
def lead(found, through):
    for at, mica, driver, _ in found: ctypes.c_uint64.from_address(at).value = mica if through else driver
def in_turns(found, f, seconds, steps):
    ratios, end = [], time.perf_counter() + seconds
    while len(ratios) < 8 or time.perf_counter() < end:
        times, first = {}, len(ratios) % 2 == 0
        for through in (first, not first):
            lead(found, through); timed(f); times[through] = statistics.median(timed(f) for _ in range(steps))
        ratios.append(times[True] / times[False])
    lead(found, True); return statistics.median(ratios)

fastest(train, 20), fastest(infer, 20)
# All of them on the same core from here on, with all their threads: what differs between cores is not what is measured.
for thread in os.listdir("/proc/self/task"):
    try: os.sched_setaffinity(int(thread), core)
    except ProcessLookupError: pass
fastest(train, 5), fastest(infer, 5); print("ready", flush=True)
found = None
for line in sys.stdin:
    order = line.strip()
    if order != "go" and found is None: found = places()
    if order == "turns":
        answer = {"train": in_turns(found, train, 2, 3), "infer": in_turns(found, infer, 1.5, 5)}
    else:
        if order == "past": lead(found, False)
        answer = {"train_ms": fastest(train, 7), "infer_ms": fastest(infer, 25)}
        if order == "past": lead(found, True)
    print(json.dumps(answer), flush=True)
