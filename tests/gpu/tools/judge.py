"""Judges what fill and race printed (on stdin); prints the figures, or what is wrong and exits 1."""
import json
import sys

MIB = 1 << 20


def fill(result, limit=10 << 30):
    # What is free at first is the limit without the context, which stays.
    most = result["free_bytes"]
    ways = {name: got for name, got in result.items() if isinstance(got, dict)}
    wrong = [f"{name}: {got}" for name, got in ways.items() if got["refusal"] != 2 or not most - 160 * MIB <= got["bytes"] <= most]
    if result["total_bytes"] != limit:
        wrong.append(f"total_bytes {result['total_bytes']}")
    if abs(result["free_after"] - most) > 64 * MIB:
        wrong.append(f"{(most - result['free_after']) / MIB:.0f} MiB lost")
    return wrong, ", ".join(f"{name} {got['bytes'] // MIB}" for name, got in ways.items()) + f" of {most // MIB}"


def race(result, limit=10 << 30):
    wrong = []
    if result["errors"] or result["failed"]:
        wrong.append("errors")
    if result["peak_bytes"] > limit:
        wrong.append("over the limit")
    if result["left_bytes"] or not result["refusals"] or not result["grants"]:
        wrong.append("nothing was contended")
    return wrong, f"peak {result['peak_bytes'] // MIB} MiB, {result['grants']} grants, {result['refusals']} refusals"


wrong, said = {"fill": fill, "race": race}[sys.argv[1]](json.loads(sys.stdin.read().strip().splitlines()[-1]))
print("; ".join(wrong) + " | " + said if wrong else said)
sys.exit(bool(wrong))
