"""Compares Mica's books with the driver's own figure for a process, for every way to get memory.

usage: accounting.py MICA HOLD LIMIT [CASE]...
For each case a process takes memory in a virtual GPU and keeps it; then what Mica charged, what it booked as unattributed, their
sum and NVML's figure for the process are printed, and again after the process gave everything back. A line is `pass` when the sum
is within 1 % of the driver's figure, else `FAIL`; for what the driver itself does not count as a process's (managed memory), when the
sum is no less. Where NVML does not know the process by its number (as in some containers), the
growth of the whole GPU's used memory stands for it, and the line says so."""
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pynvml

from control import Control

MIB = 1 << 20
mica, hold, limit = sys.argv[1:4]
here = os.path.dirname(os.path.abspath(__file__))
framework = [sys.executable, os.path.join(here, "../frameworks/hold_memory.py")]
CASES = {
    "context": [hold, "context", "0"],
    "linear": [hold, "linear", "4096"],
    "small": [hold, "small", "512"],
    "vmm": [hold, "vmm", "4096"],
    "async": [hold, "async", "4096"],
    "graph": [hold, "graph", "4096"],
    "modules": [hold, "modules", "1024"],
    "locals": [hold, "locals", "2048"],
    "stack": [hold, "stack", "2048"],
    "heap": [hold, "heap", "1024"],
    "fifo": [hold, "fifo", "256"],
    "managed": [hold, "managed", "2048"],
    "arrays": [hold, "arrays", "2048"],
    "torch": framework + ["torch"],
    "jax": framework + ["jax"],
    "cupy": framework + ["cupy"],
}
# The driver's figure for a process leaves these out; the ledger charges them.
NOT_COUNTED_BY_THE_DRIVER = {"managed"}
pynvml.nvmlInit()
local = threading.local()


def vgpu(name):
    if not hasattr(local, "control"):
        local.control = Control()
    return local.control.vgpu(name)


def card_of(uuid):
    for i in range(pynvml.nvmlDeviceGetCount()):
        card = pynvml.nvmlDeviceGetHandleByIndex(i)
        if pynvml.nvmlDeviceGetUUID(card) in (uuid, uuid.encode()):
            return card
    raise RuntimeError(f"no GPU {uuid}")


def driver_bytes(card, pid, before):
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card):
        if process.pid == pid and process.usedGpuMemory:
            return process.usedGpuMemory, ""
    return pynvml.nvmlDeviceGetMemoryInfo(card).used - before, " (whole GPU's growth)"


def compare(name, phase, card, pid, before):
    # The daemon compares once a second; two of its looks must lie after the last change.
    time.sleep(2.3)
    seen = vgpu(name)
    driver, how = driver_bytes(card, pid, before)
    process = next(p for p in seen["processes"] if p["pid"] == pid)
    beyond = process["memory_unattributed_bytes"]
    total = process["memory_used_bytes"]
    charged = process.get("memory_charged_bytes", total)
    if "memory_charged_bytes" not in process:
        total = charged + beyond
    ratio = total / driver if driver else 0.0
    good = ratio >= 1 if name in NOT_COUNTED_BY_THE_DRIVER else abs(ratio - 1) <= 0.01
    verdict = "pass " if good else "FAIL "
    print(
        f"{verdict} {name} {phase}: ledger {total / MIB:.0f} MiB (charged {charged / MIB:.0f}, unattributed {beyond / MIB:+.0f}), "
        f"driver {driver / MIB:.0f}{how}, ratio {ratio:.4f}",
        flush=True,
    )
    return how


def last_words(child):
    return " ".join(child.stderr.read()[-300:].split())


def one(name, command):
    subprocess.run([mica, "create", name, "-m", limit, "-s", "8"], check=True, stdout=subprocess.DEVNULL)
    card = card_of(vgpu(name)["gpu_uuid"])
    before = pynvml.nvmlDeviceGetMemoryInfo(card).used
    child = subprocess.Popen([mica, "exec", name, "--"] + command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = child.stdout.readline().strip()
        if said != "held":
            print(f"FAIL  {name}: {said} {last_words(child)}", flush=True)
            return
        pid = next(p["pid"] for p in vgpu(name)["processes"] if p["role"] == "direct")
        how = compare(name, "held", card, pid, before)
        if command[0] == hold and name != "context":
            os.kill(pid, signal.SIGUSR1)
            said = child.stdout.readline().strip()
            if said == "freed":
                compare(name, "freed", card, pid, before)
            else:
                print(f"FAIL  {name}: {said} {last_words(child)}", flush=True)
        return how
    finally:
        child.terminate()
        child.wait()
        subprocess.run([mica, "rm", name, "--force"], stdout=subprocess.DEVNULL)


def guarded(name):
    try:
        return one(name, CASES[name])
    except Exception as error:  # one case must not take the others with it
        print(f"FAIL  {name}: {error!r}", flush=True)


wanted = sys.argv[4:] or list(CASES)
# The first alone: if NVML knows processes by their numbers, the rest may run side by side.
at_once = 8 if guarded(wanted[0]) == "" else 1
with ThreadPoolExecutor(at_once) as pool:
    list(pool.map(guarded, wanted[1:]))
