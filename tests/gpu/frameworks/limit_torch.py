"""Allocates with PyTorch until refused, then shows that the program goes on; prints bytes and ok."""
import torch
b = []; n = 0
try:
    while True: b.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda").fill_(1)); n += 256
except torch.cuda.OutOfMemoryError as e: pass
print("allocated", n); del b; torch.cuda.empty_cache(); x = torch.ones(1 << 20, device="cuda").sum().item(); assert x == 1 << 20; print("ok")
