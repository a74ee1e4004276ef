"""A pytest plugin that runs a part of what was collected and reports each test as a line of JSON.

--json FILE: lines that say when a test begins and how it ended, in the words of `frameworks/suite/process.py`.
--named REGEX, --not-named REGEX: which tests. --most N: that many of them, evenly spread. --only FILE: just these node ids, one a line."""
import json
import os
import re
import sys

import pytest

UNUSABLE = 70
WORST = {"failed": 2, "skipped": 1, "passed": 0}


def pytest_addoption(parser):
    group = parser.getgroup("public suites")
    group.addoption("--json", required=True)
    group.addoption("--named", default="")
    group.addoption("--not-named", default="^$")
    group.addoption("--most", type=int, default=1 << 30)
    group.addoption("--only")


def pytest_configure(config):
    config.pluginmanager.register(Reporter(open(config.getoption("--json"), "a")))


def spread(items, most):
    """At most that many, evenly spread, in their order."""
    if len(items) <= most:
        return items
    return [items[at * len(items) // most] for at in range(most)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if config.getoption("--only"):
        with open(config.getoption("--only")) as source:
            wanted = set(source.read().splitlines())
        items[:] = [item for item in items if item.nodeid in wanted]
        return
    named, without = re.compile(config.getoption("--named")), re.compile(config.getoption("--not-named"))
    items[:] = spread([item for item in items if named.search(item.nodeid) and not without.search(item.nodeid)], config.getoption("--most"))


def reason(report):
    """The line of a failed test that names the error."""
    text = str(report.longrepr)
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return (lines or text.splitlines()[-1:] or [""])[0][:300]


def device_usable():
    """Whether a wait for the device succeeds. After a fault it does not, and every test that follows would fail."""
    try:
        if "cupy" in sys.modules:
            sys.modules["cupy"].cuda.Device().synchronize()
        elif "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
            sys.modules["torch"].cuda.synchronize()
        return True
    except Exception:
        return False


class Reporter:
    """Writes the lines; a test ends with the worst of its setup, call and teardown."""

    def __init__(self, out):
        self.out, self.reports = out, []

    def emit(self, line):
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()

    def pytest_collection_finish(self):
        self.emit({"imported": 0})

    def pytest_runtest_logstart(self, nodeid):
        self.reports = []
        self.emit({"begin": nodeid})

    def pytest_runtest_logreport(self, report):
        self.reports.append(report)

    def pytest_runtest_logfinish(self, nodeid):
        if not self.reports:
            return
        worst = max(self.reports, key=lambda report: WORST[report.outcome])
        error = reason(worst) if worst.outcome == "failed" else None
        ms = round(1e3 * sum(report.duration for report in self.reports), 1)
        self.emit({"name": nodeid, "ok": worst.outcome != "failed", "outcome": worst.outcome, "error": error, "ms": ms})
        if worst.outcome == "failed" and not device_usable():
            os._exit(UNUSABLE)

    def pytest_sessionfinish(self):
        self.emit({"end": True})
