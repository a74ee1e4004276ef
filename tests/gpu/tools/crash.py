"""Kills the processes of a virtual GPU and measures, apart, when the driver has its memory back and when Mica has.

usage: crash.py VGPU HELD_GIB [OTHER]
The driver's figure (NVML) and the control API are polled by a thread each, about every millisecond. OTHER is a virtual GPU whose
process's slice changes once the killed one's share is free. Prints one JSON object; times in ms since the signal."""
import json
import os
import signal
import sys
import threading
import time

import pynvml

from control import Control

name, held = sys.argv[1], int(float(sys.argv[2]) * (1 << 30))
other = sys.argv[3] if len(sys.argv) > 3 else None
pynvml.nvmlInit()
control = Control()
before = control.vgpu(name)
card = next(
    pynvml.nvmlDeviceGetHandleByIndex(i)
    for i in range(pynvml.nvmlDeviceGetCount())
    if pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) in (before["gpu_uuid"], before["gpu_uuid"].encode())
)
used_before = pynvml.nvmlDeviceGetMemoryInfo(card).used
pids = [process["pid"] for process in before["processes"]]
killed, found, polls, stop = 0.0, {}, {"driver": 0, "mica": 0}, threading.Event()


def slices(of):
    return [(process["slice_us"], process["slice_read_us"]) for process in of["processes"]]


def driver():
    while not stop.is_set() and "driver" not in found:
        used = pynvml.nvmlDeviceGetMemoryInfo(card).used
        polls["driver"] += 1
        if not killed:
            time.sleep(0.002)
            continue
        # All of it: the context's own memory goes last.
        if used + held <= used_before:
            found.setdefault("driver_most", time.monotonic())
        if used + held + (256 << 20) <= used_before:
            found["driver"] = time.monotonic()
        time.sleep(0.0005)


def mica():
    link = Control()
    share = slices(link.vgpu(other)) if other else None
    while not stop.is_set() and not {"ledger", "share"} <= found.keys():
        now = link.vgpu(name)
        polls["mica"] += 1
        if not killed:
            time.sleep(0.002)
            continue
        if not now["processes"] and now["memory_used_bytes"] == 0:
            found.setdefault("ledger", time.monotonic())
        if share is None:
            if not now["processes"]:
                found.setdefault("share", time.monotonic())
        elif slices(link.vgpu(other)) != share:
            found.setdefault("share", time.monotonic())
        time.sleep(0.0005)


threads = [threading.Thread(target=driver), threading.Thread(target=mica)]
for thread in threads:
    thread.start()
time.sleep(0.2)
killed = time.monotonic()
for pid in pids:
    os.kill(pid, signal.SIGKILL)
limit = killed + 10
for thread in threads:
    thread.join(max(0, limit - time.monotonic()))
stop.set()
result = {key: round((at - killed) * 1e3, 1) for key, at in found.items()}
freed = found.get("driver", found.get("driver_most"))
if freed and "ledger" in found:
    result["ledger_after_driver"] = round((found["ledger"] - freed) * 1e3, 1)
if freed and "share" in found:
    result["share_after_driver"] = round((found["share"] - freed) * 1e3, 1)
result["charged_before_bytes"] = before["memory_used_bytes"]
result["polls"] = polls
print(json.dumps(result))
