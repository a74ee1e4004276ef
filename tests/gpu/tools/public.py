"""Runs parts of PyTorch's and CuPy's own tests natively, then those that passed in a mode of Mica, and names every difference.

usage: public.py --suites FOLDER [--mica PATH] [--mode isolated] [--suite pytorch|cupy] [--out FOLDER]
FOLDER has pytorch/ (files of PyTorch's test folder), cupy/ (CuPy's tests folder) and python/ (pytest and what the tests import, if not installed).
Each file is one process; one that dies or hangs costs the test it was in. Ends with 0 if every test that passed natively passes."""
import argparse
import concurrent.futures
import json
import os
import sys
import tempfile
import time

TOOLS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(TOOLS, "..", "frameworks", "suite"))
from process import Process, command_of  # noqa: E402

JOBS, SHARE, MEMORY = 12, "7", "10GiB"
TEST_SECONDS = 30
# Names of PyTorch's tests on the device, and of those that need several devices, much memory, much time, or that ask how much memory there is.
DEVICE_TEST = r"CUDA|_cuda|test_cuda.py"
HEAVY = r"(?i)large|multi_?gpu|multigpu|two_device|cross_device|multidevice|oom|memory_fraction|nvml|tunable|gds|64bit|huge|out_of_memory|memory_limit|uuid|compile|dynamo"
# File, names, and how many tests at most.
SELECTION = {
    "pytorch": [
        ("test_torch.py", DEVICE_TEST, 45),
        ("test_cuda.py", r"graph|stream|event|pinned|cudart|manual_seed|rng|autocast|grad_scal|caching|memory_stats|ipc|to_|serialization", 45),
        ("test_indexing.py", DEVICE_TEST, 35),
        ("test_sort_and_select.py", DEVICE_TEST, 30),
        ("test_sparse_csr.py", DEVICE_TEST, 40),
        ("test_spectral_ops.py", DEVICE_TEST, 35),
        ("test_linalg.py", DEVICE_TEST, 45),
        ("test_reductions.py", DEVICE_TEST, 35),
        ("test_scatter_gather_ops.py", DEVICE_TEST, 25),
        ("test_transformers.py", DEVICE_TEST, 40),
        ("nn/test_convolution.py", DEVICE_TEST, 40),
        ("nn/test_pooling.py", DEVICE_TEST, 25),
        ("nn/test_embedding.py", DEVICE_TEST, 25),
    ],
    "cupy": [
        ("cupy_tests/cuda_tests/test_memory.py", "", 60),
        ("cupy_tests/cuda_tests/test_stream.py", "", 30),
        ("cupy_tests/cuda_tests/test_graph.py", "", 30),
        ("cupy_tests/cuda_tests/test_texture.py", "", 60),
        ("cupy_tests/cuda_tests/test_runtime.py", "", 30),
        ("cupy_tests/cuda_tests/test_pinned_memory.py", "", 30),
        ("cupy_tests/core_tests/test_raw.py", "", 30),
        ("cupy_tests/core_tests/test_elementwise.py", "", 15),
        ("cupy_tests/core_tests/test_ndarray_copy_and_view.py", "", 25),
        ("cupy_tests/fft_tests/test_fft.py", "", 60),
        ("cupy_tests/linalg_tests/test_product.py", "", 30),
        ("cupy_tests/linalg_tests/test_decomposition.py", "", 25),
        ("cupy_tests/linalg_tests/test_solve.py", "", 20),
        ("cupy_tests/random_tests/test_generator.py", "", 30),
        ("cupy_tests/sorting_tests/test_sort.py", "", 25),
        ("cupyx_tests/scipy_tests/sparse_tests/test_csr.py", "", 40),
    ],
}


class Side:
    """The files of the suites under one mode; `results` maps (suite, node id) to how the test ended."""

    def __init__(self, mode, arguments, folder):
        self.mode, self.suites, self.folder = mode, arguments.suites, folder
        self.command = command_of(mode, arguments.mica, MEMORY, SHARE)
        self.deadline, self.per_file = time.monotonic() + arguments.seconds, arguments.file_seconds
        self.results, self.problems = {}, []

    def process(self, suite, file, attempt, options):
        root = os.path.join(self.suites, suite)
        command = [*self.command, "-m", "pytest", "-q", "-p", "public_plugin", "-p", "no:cacheprovider", "--rootdir", root, os.path.join(root, file), *options]
        path = os.pathsep.join([TOOLS, os.path.join(self.suites, "python"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "CUPY_CACHE_DIR": os.path.join(self.folder, "cupy_cache")}
        tag = f"{self.mode}.{suite}.{file.replace('/', '.')}.{attempt}"
        return Process(command, self.folder, tag, environment, root)

    def chosen(self, suite, file, names, most):
        """Natively: a part of the file, in one go."""
        process = self.process(suite, file, 0, ["--named", names, "--not-named", HEAVY, "--most", str(most)])
        why = process.follow(lambda _: TEST_SECONDS, min(self.deadline, time.monotonic() + self.per_file))
        self.results.update({(suite, name): record for name, record in process.results.items()})
        if not process.results:
            self.problems.append(f"{suite}/{file}: {why or 'no test was chosen'}: {' '.join(process.last_words() or self.end_of_output(process))[:200]}")

    def end_of_output(self, process):
        with open(process.lines[: -len("json")] + "out", errors="replace") as source:
            return [line.strip() for line in source if line.strip()][-2:]

    def exactly(self, suite, file, wanted):
        """These tests, with a new process after each death."""
        attempt = 0
        while wanted and time.monotonic() < self.deadline:
            listed = os.path.join(self.folder, f"{self.mode}.{suite}.{file.replace('/', '.')}.{attempt}.list")
            with open(listed, "w") as out:
                out.write("\n".join(wanted))
            process = self.process(suite, file, attempt, ["--only", listed])
            why = process.follow(lambda _: TEST_SECONDS, self.deadline)
            self.results.update({(suite, name): record for name, record in process.results.items()})
            left = [name for name in wanted if name not in process.results]
            if len(left) == len(wanted):
                for name in left:
                    self.results[suite, name] = {"status": "FAIL", "error": f"not begun: {why}: {' '.join(process.last_words())[:200]}"}
                return
            wanted, attempt = left, attempt + 1
        for name in wanted:
            self.results[suite, name] = {"status": "late", "error": "no time left"}


def run(side, jobs):
    """Runs the calls side by side; how long all of them took."""
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for job in [pool.submit(*job) for job in jobs]:
            job.result()
    return round(time.monotonic() - begun, 1)


def passed(record):
    return record.get("outcome") == "passed"


def table(native, other):
    """Prints counts for each suite and each test that passed natively only; the number of these."""
    worse = 0
    for suite in SELECTION:
        names = [name for at, name in native.results if at == suite]
        if not names:
            continue
        good = [name for name in names if passed(native.results[suite, name])]
        bad = [name for name in good if not passed(other.results.get((suite, name), {}))]
        worse += len(bad)
        print(f"{suite}: {len(names)} run natively, {len(good)} passed; {other.mode}: {len(good) - len(bad)} of these passed, {len(bad)} did not")
        for name in bad:
            record = other.results.get((suite, name), {})
            words = record.get("outcome") if record.get("outcome") == "skipped" else record.get("error") or record.get("status", "not run")
            said = " | ".join([str(words), *record.get("stderr", [])[-1:]])
            print(f"  {name.split('/')[-1][:100]}\n    {said[:160]}")
    for problem in native.problems:
        print(f"  not run: {problem}")
    return worse


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--suites", required=True)
    parser.add_argument("--mica", default="mica")
    parser.add_argument("--mode", default="isolated")
    parser.add_argument("--suite", choices=list(SELECTION))
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--seconds", type=float, default=120, help="the most a mode may take")
    parser.add_argument("--file-seconds", type=float, default=45, help="the most a file may take natively")
    arguments = parser.parse_args()
    files = [(suite, *row) for suite, rows in SELECTION.items() if arguments.suite in (None, suite) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        native, other = Side("native", arguments, folder), None
        took = {"native": run(native, [(native.chosen, *row) for row in files])}
        other = Side(arguments.mode, arguments, folder)
        of_file = {(suite, file): [name for at, name in native.results if at == suite and name.split("::")[0] == file and passed(native.results[at, name])] for suite, file, *_ in files}
        took[arguments.mode] = run(other, [(other.exactly, *at, names) for at, names in of_file.items() if names])
    worse = table(native, other)
    print("seconds: " + ", ".join(f"{mode} {seconds}" for mode, seconds in took.items()))
    rows = [{"suite": suite, "test": name, "native": record, arguments.mode: other.results.get((suite, name))} for (suite, name), record in native.results.items()]
    with open(os.path.join(arguments.out, "public.json"), "w") as out:
        json.dump({"seconds": took, "problems": native.problems, "tests": rows}, out, indent=1)
    good = any(passed(record) for record in native.results.values())
    return 0 if good and not worse else 1


if __name__ == "__main__":
    sys.exit(main())
