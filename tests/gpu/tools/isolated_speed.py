"""Medians of what frameworks/speed.py printed on each side, ratios and goals: isolated_speed.py NATIVE ISOLATED [JSON]

Each file has a line for each round; the third argument names a file that gets the figures as JSON. Ends with 1 if a goal is missed."""
import json
import statistics
import sys

# Name, figure, unit, kind of goal, limit.
ROWS = [
    ("large training step", "large_train_ms", "ms", "times", 1.02),
    ("bf16 GEMM loop", "gemm_tflops", "TFLOP/s", "percent", 98),
    ("small transformer training step", "small_train_ms", "ms", "times", 1.15),
    ("inference step", "infer_ms", "ms", "times", 1.2),
    ("CUDA-graph inference", "graph_infer_ms", "ms", "times", 1.05),
    ("import to first result", "first_result_ms", "ms", "more", 300),
]


def judge(native, isolated, kind, limit):
    """Whether a goal is reached, and the goal in words."""
    return {
        "times": (isolated <= native * limit, f"≤ ×{limit}"),
        "percent": (100 * isolated >= native * limit, f"≥ {limit} %"),
        "more": (isolated - native <= limit, f"≤ +{limit} ms"),
    }[kind]


def rows(native, isolated):
    """One row for each figure, from the rounds of both sides."""
    for what, key, unit, kind, limit in ROWS:
        sides = [statistics.median(round[key] for round in side) for side in (native, isolated)]
        reached, goal = judge(*sides, kind, limit)
        yield {"what": what, "unit": unit, "native": sides[0], "isolated": sides[1], "ratio": sides[1] / sides[0], "goal": goal, "reached": reached}


def rounds(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines if line.startswith("{")]


def main(native, isolated, json_file=None):
    native, isolated = rounds(native), rounds(isolated)
    if not native or not isolated:
        print(f"FAIL  PyTorch isolated: {len(native)} rounds natively, {len(isolated)} isolated")
        return 1
    judged = list(rows(native, isolated))
    for row in judged:
        word = "pass " if row["reached"] else "FAIL "
        print(f"{word} PyTorch isolated, {row['what']}: native {row['native']:.3f} {row['unit']}, isolated {row['isolated']:.3f}, ratio {row['ratio']:.3f} (goal {row['goal']})")
    if json_file:
        with open(json_file, "w") as out:
            json.dump(judged, out, indent=2, ensure_ascii=False)
    return 0 if all(row["reached"] for row in judged) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
