"""bf16 GEMMs in a loop, plain or as a CUDA graph, counted over a window that competitors share.
usage: gemm_loop.py plain|graph START_UNIX_MS SECONDS; prints one JSON object."""
import json, sys, time, torch
mode, start, seconds = sys.argv[1], float(sys.argv[2]) / 1e3, float(sys.argv[3])
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16); b = torch.randn_like(a); c = torch.empty_like(a); n = 10
def work():
    for _ in range(n): torch.mm(a, b, out=c)
work(); torch.cuda.synchronize()
if mode == "graph":
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g): work()
    step = g.replay
else: step = work
e = [torch.cuda.Event() for _ in range(4)]; k = 0; done = 0
while time.time() < start + seconds:
    if k >= 4:
        e[k % 4].synchronize()
        if start <= time.time() < start + seconds: done += n
    step(); e[k % 4].record(); k += 1
torch.cuda.synchronize(); print(json.dumps({"rate": done / seconds}))
