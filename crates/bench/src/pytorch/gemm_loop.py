"""bf16 GEMMs in a loop, plain or as a CUDA graph, counted over a window that competitors share. Says ready when warm; for each
line "plain|graph START_UNIX_MS SECONDS" of input prints one JSON object."""
import json, sys, time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16); b = torch.randn_like(a); c = torch.empty_like(a); n = 10
def work():
    for _ in range(n): torch.mm(a, b, out=c)
work(); torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g): work()
g.replay(); torch.cuda.synchronize(); print("ready", flush=True)
for line in sys.stdin:
    mode, start, seconds = line.split(); start = float(start) / 1e3; seconds = float(seconds)
    step = g.replay if mode == "graph" else work
    e = [torch.cuda.Event() for _ in range(4)]; k = 0; done = 0
    while time.time() < start + seconds:
        if k >= 4:
            e[k % 4].synchronize()
            if start <= time.time() < start + seconds: done += n
        step(); e[k % 4].record(); k += 1
    torch.cuda.synchronize(); print(json.dumps({"rate": done / seconds}), flush=True)
