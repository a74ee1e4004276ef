"""Medians of what frameworks/speed.py printed on the host and behind a wall, both in isolated mode, ratios and goals:
walls_speed.py WALL HOST BEHIND [JSON]

WALL is tls or root. Each file has a line for each round; the last argument names a file that gets the figures as JSON. Ends with 1 if a
goal is missed. Figures without a goal are notes."""
import json
import statistics
import sys

from isolated_speed import judge, rounds

# Name, figure, unit, and for each wall the kind of goal and its limit.
ROWS = [
    ("large training step", "large_train_ms", "ms", {"tls": ("times", 1.05), "root": ("times", 1.02)}),
    ("bf16 GEMM loop", "gemm_tflops", "TFLOP/s", {"tls": ("percent", 95), "root": ("percent", 98)}),
    ("small transformer training step", "small_train_ms", "ms", {"root": ("times", 1.05)}),
    ("inference step", "infer_ms", "ms", {"root": ("times", 1.05)}),
    ("CUDA-graph inference", "graph_infer_ms", "ms", {"root": ("times", 1.05)}),
    ("import to first result", "first_result_ms", "ms", {}),
]


def rows(wall, host, behind):
    """One row for each figure, from the rounds of both sides."""
    for what, key, unit, goals in ROWS:
        sides = [statistics.median(round[key] for round in side) for side in (host, behind)]
        reached, goal = judge(*sides, *goals[wall]) if wall in goals else (None, None)
        yield {"what": what, "unit": unit, "host": sides[0], "behind": sides[1], "ratio": sides[1] / sides[0], "goal": goal, "reached": reached}


def main(wall, host, behind, json_file=None):
    host, behind = rounds(host), rounds(behind)
    if not host or not behind:
        print(f"FAIL  PyTorch behind {wall}: {len(host)} rounds on the host, {len(behind)} behind the wall")
        return 1
    judged = list(rows(wall, host, behind))
    for row in judged:
        word = {True: "pass ", False: "FAIL ", None: "note "}[row["reached"]]
        goal = f" (goal {row['goal']})" if row["goal"] else ""
        print(f"{word} PyTorch behind {wall}, {row['what']}: host {row['host']:.3f} {row['unit']}, behind {row['behind']:.3f}, ratio {row['ratio']:.3f}{goal}")
    if json_file:
        with open(json_file, "w") as out:
            json.dump(judged, out, indent=2, ensure_ascii=False)
    return 0 if all(row["reached"] is not False for row in judged) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
