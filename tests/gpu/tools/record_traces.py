#!/usr/bin/env python3
"""Records what PyTorch's allocator is asked for, and what it asks the driver for, as text.

usage: record_traces.py FOLDER [NAME]...

A file has a line for each event, in order:

    +BYTES   a tensor's memory is asked for; the first is number 0
    -NUMBER  memory with this number is given back
    *BYTES   PyTorch takes a segment from the driver (cudaMalloc)
    /BYTES   PyTorch gives a segment back

Lines that begin with `#` say what was run, and PyTorch's own figures at the end of it and at the peak.
"""
import os
import random
import sys

import torch
import torch.nn.functional as F


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, past=None):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x)))), (k, v)


class Model(torch.nn.Module):
    def __init__(self, layers, width, heads, words):
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = torch.nn.Linear(width, words, bias=False)

    def forward(self, tokens, past=None):
        x, kept = self.words(tokens), []
        for number, block in enumerate(self.blocks):
            x, one = block(x, past[number] if past else None)
            kept.append(one)
        return self.head(x), kept


def model(layers=6, width=1024, heads=16, words=32000, dtype=torch.float32):
    torch.manual_seed(1)
    return Model(layers, width, heads, words).to("cuda", dtype)


def training():
    """training: 6 layers, width 1024, 8 x 512 tokens, bf16 autocast, AdamW, 3 steps"""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    tokens = torch.randint(0, 32000, (8, 513), device="cuda")
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            logits, _ = net(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    return net, optimizer


def lengths():
    """training with changing lengths: 6 layers, width 1024, batches of 1 to 12 with 32 to 900 tokens, AdamW, 6 steps"""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    draw = random.Random(3)
    for _ in range(6):
        batch, length = draw.randint(1, 12), draw.randint(32, 900)
        tokens = torch.randint(0, 32000, (batch, length + 1), device="cuda")
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            logits, _ = net(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    return net, optimizer


@torch.no_grad()
def inference():
    """inference with changing lengths: 6 layers, width 1024, bf16, 14 requests of 16 to 1500 tokens, up to 6 at a time, caches that grow"""
    net = model(dtype=torch.bfloat16).eval()
    draw, live = random.Random(5), []
    for request in range(14):
        tokens = torch.randint(0, 32000, (draw.randint(1, 4), draw.randint(16, 1500)), device="cuda")
        logits, past = net(tokens)
        live.append([logits[:, -1:].argmax(-1), past])
        del logits
        for one in live:
            for _ in range(draw.randint(1, 2)):
                logits, one[1] = net(one[0], one[1])
                one[0] = logits[:, -1:].argmax(-1)
                del logits
        while len(live) > 5 or (live and draw.random() < 0.2):
            live.pop(draw.randrange(len(live)))
    return net, live


def record(work, path):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=2_000_000)
    kept = work()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    numbers, lines, asked, peak = {}, [], 0, 0
    sizes = {}
    for event in snapshot["device_traces"][torch.cuda.current_device()]:
        kind, address, size = event["action"], event["addr"], event["size"]
        if kind == "alloc":
            numbers[address] = len(sizes)
            sizes[numbers[address]] = size
            lines.append(f"+{size}")
            asked += size
            peak = max(peak, asked)
        elif kind == "free_completed" and address in numbers:
            number = numbers.pop(address)
            asked -= sizes[number]
            lines.append(f"-{number}")
        elif kind == "segment_alloc":
            lines.append(f"*{size}")
        elif kind == "segment_free":
            lines.append(f"/{size}")
    free = [b["size"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] == "inactive"]
    head = [
        f"# {work.__doc__}",
        f"# PyTorch {torch.__version__}, {torch.cuda.get_device_name()}; {len(lines)} events; {before} bytes before them",
        f"# peak: requested {stats['requested_bytes.all.peak']} allocated {stats['allocated_bytes.all.peak']} reserved {stats['reserved_bytes.all.peak']} by_trace {peak}",
        f"# end: requested {stats['requested_bytes.all.current']} allocated {stats['allocated_bytes.all.current']} reserved {stats['reserved_bytes.all.current']}"
        f" free {sum(free)} largest_free {max(free, default=0)} by_trace {asked}",
    ]
    with open(path, "w") as file:
        file.write("\n".join(head + lines) + "\n")
    print("\n".join(head), os.path.getsize(path), "bytes")
    del kept


if __name__ == "__main__":
    works = {work.__name__: work for work in (training, lengths, inference)}
    for name in sys.argv[2:] or works:
        record(works[name], os.path.join(sys.argv[1], f"{name}.trace"))
