"""The runner of public suites itself, with a suite of four tests and without a GPU: `python3 -m unittest` in this folder; needs pytest."""
import contextlib
import importlib.util
import io
import os
import stat
import sys
import tempfile
import unittest
from unittest import mock

import public

TESTS = """
import os, signal
APART = os.environ.get("STAND_IN_MODE") == "isolated"
def test_good(): pass
def test_crashes():
    if APART: os.kill(os.getpid(), signal.SIGSEGV)
def test_differs(): assert not APART, "another answer"
def test_after(): pass
def test_bad_everywhere(): assert False
def test_large_tensor(): pass
"""
STAND_IN = """#!/bin/sh
while [ "$1" != -- ]; do [ "$1" = --mode ] && STAND_IN_MODE=$2; shift; done
shift; export STAND_IN_MODE
exec "$@"
"""


@unittest.skipUnless(importlib.util.find_spec("pytest"), "needs pytest")
class Public(unittest.TestCase):
    def test_names_what_passes_natively_only(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "pytorch"))
            for name, text in (("pytorch/test_it.py", TESTS), ("mica", STAND_IN)):
                with open(os.path.join(folder, name), "w") as out:
                    out.write(text)
            mica = os.path.join(folder, "mica")
            os.chmod(mica, os.stat(mica).st_mode | stat.S_IXUSR)
            words = ["public.py", "--suites", folder, "--mica", mica, "--out", folder]
            with mock.patch.object(public, "SELECTION", {"pytorch": [("test_it.py", "test_", 10)]}), mock.patch.object(sys, "argv", words):
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    code = public.main()
        self.assertEqual(code, 1)
        self.assertIn("pytorch: 5 run natively, 4 passed; isolated: 2 of these passed, 2 did not", said.getvalue())
        self.assertIn("test_it.py::test_crashes\n    signal 11", said.getvalue())
        self.assertIn("AssertionError: another answer", said.getvalue())


if __name__ == "__main__":
    unittest.main()
