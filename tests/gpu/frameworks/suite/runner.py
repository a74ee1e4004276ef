"""Runs the cases of one framework in one process, in the order of their source.

usage: runner.py FRAMEWORK [--from N | --only NAME,...] [--json FILE]
Writes JSON lines to FILE (default: stdout): when the framework is imported, when a case begins, and its result. Cases that need a process
of their own run with --only. Ends with code 70 after a case that left the device unusable: the rest needs a new process."""
import argparse
import faulthandler
import importlib
import json
import os
import sys
import time
import traceback

from case import CASES_FOLDER, digest, read_cases

UNUSABLE = 70


def one_line(error):
    """The error and the line of the suite it came from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("_cases.py")]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:600] + place


def run(function):
    """One result: the digest, or the error."""
    begun = time.perf_counter()
    try:
        result = {"ok": True, "digest": digest(function())}
    except Exception as error:
        result = {"ok": False, "error": one_line(error)}
    return {**result, "ms": round(1e3 * (time.perf_counter() - begun), 1)}


def usable(module):
    try:
        module.healthy()
        return True
    except Exception:
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("framework")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--only")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    cases = read_cases(arguments.framework)
    # The GPU's own text goes to stdout, so a stream of JSON gets a descriptor that no case redirects.
    out = open(arguments.json, "a") if arguments.json else os.fdopen(os.dup(1), "w")
    if arguments.json:
        faulthandler.enable(open(arguments.json + ".stack", "w"))

    def emit(line):
        out.write(json.dumps(line) + "\n")
        out.flush()

    sys.path.insert(0, CASES_FOLDER)
    begun = time.perf_counter()
    try:
        module = importlib.import_module(f"{arguments.framework}_cases")
    except ImportError as error:
        emit({"missing": one_line(error)})
        return
    emit({"imported": round(1e3 * (time.perf_counter() - begun), 1)})
    only = arguments.only.split(",") if arguments.only else []
    chosen = [one for index, one in enumerate(cases) if (one.name in only if only else index >= arguments.first and not one.own)]
    for one in chosen:
        emit({"begin": one.name})
        result = run(getattr(module, one.name))
        emit({"name": one.name, **result})
        if not one.own and not result["ok"] and not usable(module):
            # Whatever the framework does at its end may wait for the device.
            os._exit(UNUSABLE)
    emit({"end": True})
    sys.stdout.flush()
    # A case of its own may leave a context that cannot be ended in order.
    if any(one.own for one in chosen):
        os._exit(0)


if __name__ == "__main__":
    main()
