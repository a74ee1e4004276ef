"""The framework suite: every case natively, in direct and in isolated mode, and one table of the differences.

usage: suite.py [--mica PATH] [--modes native,direct,isolated] [--cases REGEX] [--out FOLDER] [--seconds N]
A process that dies or hangs costs the case it was in; the next process goes on after it. Frameworks and the cases with a process of their
own run side by side, modes one after the other. Ends with 0 if every case that is good natively is good in every mode. Writes
FOLDER/frameworks.json."""
import argparse
import concurrent.futures
import json
import os
import re
import sys
import tempfile
import time

from case import apart, frameworks, identical, read_cases
from process import Process, command_of

# Side by side; each has its own virtual GPU of SHARE percent, and one that was just left may still count.
JOBS, SHARE, MEMORY = 12, "7", "10GiB"
RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runner.py")


def environment(mode, folder, extra):
    """Empty caches for each mode, so that each of them compiles for itself."""
    caches = {name: os.path.join(folder, name.lower()) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")}
    # JAX takes three quarters of what it sees; beside other processes of the bare card that is too much.
    native = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".1"} if mode == "native" else {}
    return {**os.environ, "PYTHONUNBUFFERED": "1", **caches, **native, **extra}


class Mode:
    """One pass over all cases under one mode."""

    def __init__(self, mode, arguments, folder):
        self.mode, self.folder, self.results = mode, folder, {}
        self.command = command_of(mode, arguments.mica, MEMORY, SHARE)
        self.deadline = time.monotonic() + arguments.seconds

    def process(self, framework, tag, extra, *options):
        command = [*self.command, RUNNER, framework, *options]
        return Process(command, self.folder, f"{self.mode}.{framework}.{tag}", environment(self.mode, self.folder, extra))

    def put(self, case, record):
        self.results[case.framework, case.name] = record

    def alone(self, case):
        """A case in a process of its own."""
        if time.monotonic() > self.deadline:
            return self.put(case, {"status": "late", "error": "no time left"})
        process = self.process(case.framework, case.name, case.env, "--only", case.name)
        why = process.follow(lambda _: case.seconds, self.deadline)
        self.put(case, process.results.get(case.name) or self.unbegun(process, why))

    def unbegun(self, process, why):
        if process.missing:
            return {"status": "skip", "error": process.missing}
        return {"status": "FAIL", "error": f"not begun: {why}", "stderr": process.last_words(), "stack": process.stack()}

    def together(self, framework, cases):
        """The cases of one framework: one process, and another after each death."""
        wanted = [case for case in cases if not case.own]
        limits = {case.name: case.seconds for case in wanted}
        empty, end = 0, {"status": "ok"}
        while wanted and time.monotonic() < self.deadline and empty < 2:
            process = self.process(framework, wanted[0].name, {}, "--only", ",".join(case.name for case in wanted))
            why = process.follow(limits.get, self.deadline)
            for case in wanted:
                if case.name in process.results:
                    self.put(case, process.results[case.name])
            left = [case for case in wanted if case.name not in process.results]
            # Twice nothing at all: the framework does not start here.
            empty = empty + 1 if len(left) == len(wanted) else 0
            if process.missing or empty == 2:
                for case in left:
                    self.put(case, self.unbegun(process, why))
                return None
            if why not in (None, "unusable") and process.current is None:
                end = {"status": "FAIL", "error": why, "stderr": process.last_words(), "stack": process.stack()}
            if why is None:
                break
            wanted = left
        for case in wanted:
            self.results.setdefault((case.framework, case.name), {"status": "late", "error": "no time left"})
        # How the process ended after its last case: a crash there is nobody's case.
        self.results[framework, "(end)"] = end

    def run(self, chosen):
        by_framework = {}
        for case in chosen:
            by_framework.setdefault(case.framework, []).append(case)
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            jobs = [pool.submit(self.together, name, cases) for name, cases in by_framework.items() if any(not case.own for case in cases)]
            jobs += [pool.submit(self.alone, case) for case in chosen if case.own]
            for job in jobs:
                job.result()
        return self.results


def judge(case, modes, results):
    """One row: a word for each mode, the reason of the first that is not good, and the modes that count as failed."""
    reference = results[modes[0]].get((case.framework, case.name), {"status": "-"})
    words, reasons, failed = [], [], []
    for mode in modes:
        record = results[mode].get((case.framework, case.name), {"status": "-"})
        status, reason = record["status"], record.get("error", "")
        if status == "ok" and reference["status"] == "ok" and "digest" in record:
            reason = apart(reference["digest"], record["digest"], case.tolerance)
            if reason:
                status = "differs"
            elif identical(reference["digest"], record["digest"]):
                record["same_bits"] = True
        if reason:
            words_of_process = [line for line in record.get("stderr", []) if line not in reason]
            reasons.append((mode, " | ".join([reason, *words_of_process[-1:]])))
        counts = status != "skip" if mode == modes[0] else reference["status"] == "ok"
        if status != "ok" and counts and not case.optional:
            failed.append(mode)
        record["verdict"] = status
        words.append(f"{status} {record['ms']:.0f}" if status == "ok" and "ms" in record else status)
    return words, reasons, failed


def table(cases, modes, results):
    """Prints one line a case and the counts. Returns the number of failures of each mode, and their reasons in full."""
    print(f"{'case (ok and milliseconds)':<33}" + "".join(f"{mode:<9}" for mode in modes) + "reason")
    whole = []
    good, bits, bad = dict.fromkeys(modes, 0), dict.fromkeys(modes, 0), dict.fromkeys(modes, 0)
    for case in cases:
        words, reasons, failed = judge(case, modes, results)
        for mode in modes:
            record = results[mode].get((case.framework, case.name), {})
            good[mode] += record.get("verdict") == "ok"
            bits[mode] += record.get("same_bits", False)
            bad[mode] += mode in failed
        reason = "; ".join(f"{mode}: {text}" if len(modes) > 1 else text for mode, text in reasons[:1])
        line = f"{case.framework + '.' + case.name:<32.32} " + "".join(f"{word:<8.8} " for word in words) + reason
        print(line[:110].rstrip())
        whole += [f"{case.framework}.{case.name} {mode}: {text[:400]}" for mode, text in reasons if mode in failed]
    for mode in modes:
        print(f"{mode}: {good[mode]} of {len(cases)} ok, {bits[mode]} the same bits as {modes[0]}, {bad[mode]} failed")
    return bad, whole


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mica", default="mica")
    parser.add_argument("--modes", default="native,direct,isolated")
    parser.add_argument("--cases", default=os.environ.get("CASES", ""))
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--seconds", type=float, default=75, help="the most a mode may take")
    arguments = parser.parse_args()
    modes = arguments.modes.replace(" ", ",").split(",")
    chosen = [case for name in frameworks() for case in read_cases(name) if re.search(arguments.cases, f"{name}.{case.name}")]
    results, took = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in modes:
            begun = time.monotonic()
            os.makedirs(os.path.join(folder, mode))
            results[mode] = Mode(mode, arguments, os.path.join(folder, mode)).run(chosen)
            took[mode] = round(time.monotonic() - begun, 1)
    ends = sorted({name for records in results.values() for name in records if name[1] == "(end)"})
    # The end of a framework's process is a row like a case's.
    chosen += [type(chosen[0])(*name) for name in ends] if chosen else []
    bad, whole = table(chosen, modes, results)
    print("seconds: " + ", ".join(f"{mode} {seconds}" for mode, seconds in took.items()))
    rows = [{"framework": case.framework, "case": case.name, **{mode: results[mode].get((case.framework, case.name)) for mode in modes}} for case in chosen]
    with open(os.path.join(arguments.out, "frameworks.json"), "w") as out:
        json.dump({"seconds": took, "failures": whole, "cases": rows}, out, indent=1)
    # What the table cuts off, for the log.
    with open(os.path.join(arguments.out, "frameworks.failures"), "w") as out:
        out.writelines(line + "\n" for line in whole)
    return 1 if any(bad.values()) or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
