"""Small-transformer training and inference steps. Says ready when warm; for each line of input prints the fastest times in milliseconds."""
import glob, json, os, sys, time
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
def fastest(f, n):
    for _ in range(2): f()
    torch.cuda.synchronize(); t = []
    for _ in range(n):
        a = time.perf_counter(); f(); torch.cuda.synchronize(); t.append(time.perf_counter() - a)
    return min(t) * 1e3
fastest(train, 20), fastest(infer, 20)
# All of them on the same core from here on, with all their threads: what differs between cores is not what is measured.
for thread in os.listdir("/proc/self/task"):
    try: os.sched_setaffinity(int(thread), core)
    except ProcessLookupError: pass
fastest(train, 5), fastest(infer, 5); print("ready", flush=True)
for _ in sys.stdin: print(json.dumps({"train_ms": fastest(train, 7), "infer_ms": fastest(infer, 25)}), flush=True)
