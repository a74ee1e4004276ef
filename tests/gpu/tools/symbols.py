"""Whether every function that the real driver exports can be found in libcuda.so.1 as programs see it: by dlsym, by linking.

usage: symbols.py < names        (run natively to list the names: symbols.py list)
Without `list` the names on stdin are looked up; prints how many were found, then ok, or the missing ones."""
import ctypes
import os
import re
import subprocess
import sys


def driver_file():
    library = ctypes.CDLL("libcuda.so.1")
    library.cuInit
    for line in open("/proc/self/maps"):
        found = re.search(r"(/\S*libcuda\.so\S*)", line)
        if found:
            return os.path.realpath(found.group(1))
    raise SystemExit("libcuda.so.1 is mapped nowhere")


if sys.argv[1:] == ["list"]:
    out = subprocess.run(["nm", "-D", "--defined-only", driver_file()], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        address, kind, name = line.split()[-3:]
        if kind in "TtWi" and name.split("@")[0].startswith("cu"):
            print(name.split("@")[0])
    sys.exit()
names = sorted(set(sys.stdin.read().split()))
library = ctypes.CDLL("libcuda.so.1")
missing = []
for name in names:
    try:
        getattr(library, name)
    except AttributeError:
        missing.append(name)
if not names or missing:
    print(f"{len(missing)} of {len(names)} are missing: {' '.join(missing[:20])}")
    sys.exit(1)
print(f"{len(names)} names")
print("ok")
