"""The suite itself, without a framework and without a GPU: `python3 -m unittest` in this folder, about 15 s.

A stand-in for `mica` runs the command behind `--` and tells the cases its mode."""
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

from case import apart, captured, digest

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = """
import os, signal, sys, time
from case import case
MODE = os.environ.get("STAND_IN_MODE", "native")
def healthy():
    if broken: raise RuntimeError("device lost")
broken = []
@case
def good(): return [1.5, 2.5]
@case
def crashes():
    if MODE != "native":
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
@case
def after_the_crash(): return "text"
@case(seconds=1)
def hangs():
    while MODE == "isolated": time.sleep(0.1)
@case
def breaks_the_device():
    if MODE == "isolated":
        broken.append(1)
        raise RuntimeError("illegal address")
@case
def needs_the_device():
    if broken: raise RuntimeError("poisoned")
@case
def differs(): return 1.0 if MODE != "isolated" else 1.1
@case(tolerance=0.2)
def tolerated(): return 1.0 if MODE != "isolated" else 1.1
@case(optional=True)
def refused():
    if MODE != "native": raise RuntimeError("not supported")
@case(own=True, env={"EXTRA": "7"})
def alone(): return os.environ["EXTRA"]
"""
STAND_IN = """#!/bin/sh
while [ "$1" != -- ]; do [ "$1" = --mode ] && STAND_IN_MODE=$2; shift; done
shift; export STAND_IN_MODE
"$@"
"""


class Suite(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as out:
            out.write(text)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def run_suite(self, *options):
        mica = self.write("mica", STAND_IN)
        environment = {**os.environ, "SUITE_CASES_FOLDER": self.folder.name, "CASES": ""}
        command = [sys.executable, os.path.join(HERE, "suite.py"), "--mica", mica, "--out", self.folder.name, *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        with open(os.path.join(self.folder.name, "frameworks.json")) as source:
            rows = {row["case"]: row for row in json.load(source)["cases"]}
        return done, rows

    def test_each_end_of_a_case_is_told_apart_and_the_rest_still_runs(self):
        self.write("fake_cases.py", CASES)
        done, rows = self.run_suite()
        verdicts = {name: tuple((row[mode] or {}).get("verdict") for mode in ("native", "direct", "isolated")) for name, row in rows.items()}
        self.assertEqual(verdicts["good"], ("ok", "ok", "ok"))
        self.assertEqual(verdicts["crashes"], ("ok", "crash 11", "crash 11"))
        self.assertEqual(verdicts["after_the_crash"], ("ok", "ok", "ok"))
        self.assertEqual(verdicts["hangs"], ("ok", "ok", "hang"))
        self.assertEqual(verdicts["breaks_the_device"], ("ok", "ok", "FAIL"))
        self.assertEqual(verdicts["needs_the_device"], ("ok", "ok", "ok"))
        self.assertEqual(verdicts["differs"], ("ok", "ok", "differs"))
        self.assertEqual(verdicts["tolerated"], ("ok", "ok", "ok"))
        self.assertEqual(verdicts["refused"], ("ok", "FAIL", "FAIL"))
        self.assertEqual(verdicts["alone"], ("ok", "ok", "ok"))
        self.assertIn("last words", rows["crashes"]["direct"]["stderr"])
        self.assertEqual(done.returncode, 1)
        self.assertIn("direct: 9 of 11 ok", done.stdout)
        self.assertIn("isolated: 6 of 11 ok, 4 the same bits as native, 4 failed", done.stdout)
        self.assertTrue(all(len(line) <= 110 for line in done.stdout.splitlines()), done.stdout)

    def test_cases_are_selected_and_a_good_run_ends_with_zero(self):
        self.write("fake_cases.py", CASES)
        done, rows = self.run_suite("--cases", "fake.(good|alone|refused)", "--modes", "native isolated")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sorted(rows), ["(end)", "alone", "good", "refused"])

    def test_a_framework_that_is_not_installed_is_skipped(self):
        self.write("fake_cases.py", "import no_such_framework\nfrom case import case\n@case\ndef one(): pass\n")
        done, rows = self.run_suite("--modes", "native,direct")
        self.assertEqual((rows["one"]["native"]["verdict"], rows["one"]["direct"]["verdict"]), ("skip", "skip"))
        self.assertEqual(done.returncode, 0)

    def test_a_mode_that_takes_too_long_is_cut(self):
        self.write("fake_cases.py", CASES.replace("@case(seconds=1)\n", "@case\n"))
        done, rows = self.run_suite("--cases", "hangs|differs", "--modes", "isolated", "--seconds", "2")
        self.assertEqual((rows["hangs"]["isolated"]["verdict"], rows["differs"]["isolated"]["verdict"]), ("late", "late"))
        self.assertEqual(done.returncode, 1)


class Digests(unittest.TestCase):
    def test_numbers_within_the_tolerance_agree(self):
        self.assertIsNone(apart(digest([1.0, 2.0]), digest([1.0, 2.0000001]), 1e-5))
        self.assertIn("instead of", apart(digest([1.0, 2.0]), digest([1.0, 2.1]), 1e-5))

    def test_another_shape_or_text_is_told(self):
        self.assertIn("elements", apart(digest([1.0, 2.0]), digest([]), 1e-5))
        self.assertIn("'b' instead of 'a'", apart(digest("a"), digest("b"), 1e-5))
        self.assertIn("2 parts", apart(digest("a"), digest(["a", "b"]), 1e-5))

    def test_not_a_number_agrees_only_with_itself(self):
        nan = float("nan")
        self.assertIsNone(apart(digest([nan, 1.0]), digest([nan, 1.0]), 1e-5))
        self.assertIsNotNone(apart(digest([2.0, 1.0]), digest([nan, 1.0]), 1e-5))

    def test_text_of_a_descriptor_is_captured(self):
        with captured(1) as text:
            os.write(1, b"from below\n")
        self.assertEqual(text, ["from below\n"])


if __name__ == "__main__":
    unittest.main()
