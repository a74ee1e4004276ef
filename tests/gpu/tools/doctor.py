"""Judges `mica doctor --json` for virtual GPUs that were busy: doctor.py FILE VGPU..."""
import json
import sys

checks = json.load(open(sys.argv[1]))["checks"]


def judge(what, vgpu, verdicts=("ok",)):
    found = [c for c in checks if c["what"].startswith(what) and c.get("vgpu") == vgpu]
    of = f" of {vgpu}" if vgpu else ""
    if not found:
        print(f"FAIL  doctor says nothing of {what}{of}")
    for check in found:
        word = "pass " if check["verdict"] in verdicts else "FAIL "
        print(f"{word} {check['what']}{of}: {check['verdict']}, {check['evidence'][:200]}")


judge("entry points of the driver", None)
judge("kernel module", None)
judge("library of programs", None)
for vgpu in sys.argv[2:]:
    for what in ("limit tested", "limit tried on the GPU", "memory the driver reports", "mechanism", "hardware slice", "share over the last minute"):
        judge(what, vgpu)
