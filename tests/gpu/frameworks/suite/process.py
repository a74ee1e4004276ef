"""One process of the runner: starts it, follows its lines, ends it when a case takes too long.

Owns the verdicts on a process: a signal, a hang, an end without a word. Does not compare results; `suite` does."""
import json
import os
import signal
import subprocess
import sys
import time

from case import HERE

IMPORT_SECONDS = 90
UNUSABLE = 70


class Process:
    """A runner under one mode. `results` has a record for each case that began."""

    def __init__(self, command, folder, tag, environment, working=HERE):
        self.lines = os.path.join(folder, tag + ".json")
        self.stderr = os.path.join(folder, tag + ".err")
        self.results, self.current, self.missing, self.ended, self.read = {}, None, None, False, 0
        self.imported = False
        # Made before the start, so that it can be read at once.
        open(self.lines, "w").close()
        with open(self.stderr, "wb") as stderr, open(os.path.join(folder, tag + ".out"), "wb") as stdout:
            # A process group of its own: a hang ends all of it.
            streams = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr}
            self.child = subprocess.Popen([*command, "--json", self.lines], cwd=working, env=environment, start_new_session=True, **streams)
        self.since = time.monotonic()

    def take(self):
        """Reads the lines that have been completed since the last call."""
        with open(self.lines) as source:
            source.seek(self.read)
            while (text := source.readline()).endswith("\n"):
                self.read = source.tell()
                self.note(json.loads(text))

    def note(self, line):
        self.since = time.monotonic()
        if "missing" in line:
            self.missing = line["missing"]
        elif "imported" in line:
            self.imported = True
        elif "begin" in line:
            self.current = line["begin"]
        elif "name" in line:
            self.results[line["name"]] = {"status": "ok" if line["ok"] else "FAIL", **line}
            self.current = None
        elif "end" in line:
            self.ended = True

    def follow(self, limit_of, deadline):
        """Waits for the end; `limit_of(name)` is the most seconds a case may take. Says why the process ended: None if well."""
        while True:
            code = self.child.poll()
            self.take()
            if code is not None:
                return self.verdict(code)
            limit = limit_of(self.current) if self.current else IMPORT_SECONDS
            late = time.monotonic() > deadline
            if late or time.monotonic() - self.since > limit:
                return self.stop("no time left" if late else f"no end within {limit} s", "late" if late else "hang")
            time.sleep(0.05)

    def stop(self, why, status):
        os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        return self.blame(status, why)

    def verdict(self, code):
        if code == 0 and (self.ended or self.missing):
            return None
        if code == UNUSABLE and not self.current and self.results:
            return "unusable"
        number = -code if code < 0 else code - 128 if code > 128 else 0
        return self.blame(f"crash {number}" if number else f"exit {code}", f"signal {number}" if number else f"exit code {code}")

    def blame(self, status, why):
        """Records the end of the process for the case it was in."""
        if self.current:
            self.results[self.current] = {"status": status, "error": why, "stderr": self.last_words(), "stack": self.stack()}
        return why

    def last_words(self):
        """The last three lines of stderr."""
        with open(self.stderr, errors="replace") as source:
            lines = [line.strip()[:300] for line in source if line.strip()]
        return lines[-3:]

    def stack(self):
        """Where Python was when a signal ended it."""
        try:
            with open(self.lines + ".stack", errors="replace") as source:
                return [line.strip() for line in source if line.strip().startswith("File")][:4]
        except OSError:
            return []


def command_of(mode, mica, memory, share):
    """What stands before the runner."""
    if mode == "native":
        return [sys.executable]
    return [mica, "run", "-m", memory, "-s", share, "--mode", mode, "--", sys.executable]
