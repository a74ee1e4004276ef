"""Medians of what micro printed, natively and in direct mode, and of the differences in pairs: overhead.py NATIVE DIRECT"""
import json
import statistics
import sys

native, direct = ([json.loads(line) for line in open(path) if line.startswith("{")] for path in sys.argv[1:3])
# Figure, factor to the unit shown, unit, the most that direct mode may add.
for name, scale, unit, most in [
    ("launch_ns", 1, "ns", 50),
    ("launch_sync_p50_us", 1, "us", None),
    ("alloc_free_1mib_us", 1, "us", 1.0),
    ("pool_hit_us", 1, "us", 0.2),
    ("startup", 1, "ms", 20),
]:
    figure = (lambda r: r["init_ms"] + r["context_ms"] + r["first_launch_ms"]) if name == "startup" else (lambda r: r[name] * scale)
    sides = [list(map(figure, side)) for side in (native, direct)]
    before, after = map(statistics.median, sides)
    # The two of a pair ran on one core one after the other: what differs between cores falls away.
    differences = sorted(b - a for a, b in zip(*sides))
    over = statistics.median(differences)
    word = "note " if most is None else "pass " if over <= most else "FAIL "
    spread = f"[{differences[0]:+.2f} .. {differences[-1]:+.2f}]"
    goal = "" if most is None else f", goal +{most}"
    print(f"{word} {name}: native {before:.2f} {unit}, direct {after:.2f} ({over:+.2f}{goal}) {spread}")
