"""Medians of what micro printed, natively and in direct mode, and of the differences in pairs: overhead.py NATIVE DIRECT"""
import json
import statistics
import sys

native, direct = ([json.loads(line) for line in open(path) if line.startswith("{")] for path in sys.argv[1:3])
# Through Mica and past it, in turns in one process: nothing but Mica differs.
for name, unit, scale, most in [
    ("launch", "ns", 1, 50),
    ("alloc_free_alone", "us", 1e3, 1.0),
    ("alloc_free_beside", "us", 1e3, 1.0),
    ("pool_hit", "us", 1e3, 0.2),
]:
    past, more = ([r[f"{name}_{what}_ns"] / scale for r in direct if f"{name}_{what}_ns" in r] for what in ("past", "more"))
    if not more:
        print(f"FAIL  {name} in turns: the driver was not found behind Mica")
        continue
    over = statistics.median(more)
    word = "pass " if over <= most else "FAIL "
    print(f"{word} {name}, in turns in one process: past Mica {statistics.median(past):.2f} {unit}, through it {over:+.2f} (goal +{most}) [{min(more):+.2f} .. {max(more):+.2f}]")
# Figure, factor to the unit shown, unit, the most that direct mode may add.
for name, scale, unit, most in [
    ("launch_ns", 1, "ns", None),
    ("launch_sync_p50_us", 1, "us", None),
    ("alloc_free_1mib_us", 1, "us", None),
    ("pool_hit_us", 1, "us", None),
    ("startup", 1, "ms", 20),
]:
    figure = (lambda r: r["init_ms"] + r["context_ms"] + r["first_launch_ms"]) if name == "startup" else (lambda r: r[name] * scale)
    sides = [list(map(figure, side)) for side in (native, direct)]
    before, after = map(statistics.median, sides)
    # The two of a pair ran on one core one after the other: what differs between cores falls away. Two such processes still
    # differ by more than Mica costs, so only start-up is judged.
    differences = sorted(b - a for a, b in zip(*sides))
    over = statistics.median(differences)
    word = "note " if most is None else "pass " if over <= most else "FAIL "
    spread = f"[{differences[0]:+.2f} .. {differences[-1]:+.2f}]"
    goal = "" if most is None else f", goal +{most}"
    print(f"{word} {name}: native {before:.2f} {unit}, direct {after:.2f} ({over:+.2f}{goal}) {spread}")
