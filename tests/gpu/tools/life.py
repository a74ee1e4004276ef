"""Two virtual GPUs under load while things happen to them: shares by the progress of the loads themselves.

usage: life.py MICA LOAD FAULT
Prints a `pass` or `FAIL` line for: shares, resize under load, several processes in one virtual GPU, suspend and resume, a kernel's fault
beside them, the daemon killed (shares stay) and its successor (adopts them, can change them)."""
import bisect
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

mica, load, fault = sys.argv[1:4]


class Load:
    """A saturating program in a virtual GPU, and how far it was at any time."""

    def __init__(self, name, iterations, seconds):
        self.times, self.units = [], []
        command = [mica, "exec", name, "--", load, "saturate", "--iterations", iterations, "--seconds", str(seconds), "--depth", "8", "--every", "0.02"]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.child.stdout:
            if line[0].isdigit():
                at, units = line.split()
                self.units.append(float(units))
                self.times.append(float(at))

    def at(self, when):
        """Units finished by a time, between the two readings around it."""
        k = bisect.bisect_left(self.times, when)
        if k == 0:
            return 0.0
        if k == len(self.times):
            return self.units[-1]
        before, after = self.times[k - 1], self.times[k]
        part = (when - before) / (after - before) if after > before else 0.0
        return self.units[k - 1] + part * (self.units[k] - self.units[k - 1])

    def between(self, begin, end):
        return self.at(end) - self.at(begin)


def run(*words):
    return subprocess.run([mica, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def verdict(good, what):
    print(("pass  " if good else "FAIL  ") + what, flush=True)


def shares(sides, seconds, settle=0.5):
    """Percent of all progress each side made over the next seconds."""
    time.sleep(settle)
    begin = time.time()
    time.sleep(seconds)
    end = time.time()
    # A reading after the end, so that it can be interpolated.
    time.sleep(0.1)
    done = [sum(one.between(begin, end) for one in side) for side in sides]
    total = sum(done) or 1.0
    return [100 * part / total for part in done]


def daemon_pid():
    """Who listens on the control socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(os.path.join(os.environ["MICA_RUNTIME_DIR"], "control.sock"))
        pid, _, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid


def close(got, want, points=1.0):
    return all(abs(a - b) <= points for a, b in zip(got, want))


def text(values):
    return " : ".join(f"{value:.1f}" for value in values)


calibration = subprocess.run([load, "saturate", "--seconds", "0.1", "--us", "400"], stdout=subprocess.PIPE, text=True)
iterations = calibration.stdout.split('"iterations": ')[1].split(",")[0]
for name in ("one", "two"):
    run("create", name, "-m", "4GiB", "-s", "50")
one, two = [Load("one", iterations, 60)], [Load("two", iterations, 60)]
sides = [one, two]
while not all(side[0].times for side in sides):
    time.sleep(0.05)
got = shares(sides, 2)
verdict(close(got, [50, 50]), f"shares 50/50: {text(got)}")
# Sums of shares never exceed the GPU, so the one that shrinks goes first.
asked = time.time()
run("resize", "two", "-s", "30"), run("resize", "one", "-s", "70")
took = 1e3 * (time.time() - asked)
got = shares(sides, 2, settle=0.15)
verdict(close(got, [70, 30]), f"resized to 70/30 under load, 150 ms after two commands of {took:.0f} ms in all: {text(got)}")
more = [Load("two", iterations, 5), Load("two", iterations, 5)]
two += more
while not all(one.times for one in more):
    time.sleep(0.05)
got = shares(sides, 2)
verdict(close(got, [70, 30]), f"three processes in the second, one in the first, 70/30: {text(got)}")
for extra in more:
    extra.child.wait()
faulted = subprocess.run([mica, "run", "-m", "1GiB", "--", fault], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
got = shares(sides, 1.5)
fine = close(got, [70, 30]) and all(side[0].child.poll() is None for side in sides)
verdict(fine and "700" in faulted.stdout, f"another tenant's kernel faults ({faulted.stdout.strip()[-40:]}); these two go on: {text(got)}")
run("suspend", "two")
time.sleep(0.3)
begin = time.time()
time.sleep(1)
stopped = two[0].between(begin, time.time())
alone = one[0].between(begin, time.time())
verdict(stopped == 0 and alone > 0, f"suspended: {stopped:.0f} kernels in a second, the other {alone:.0f}")
run("resume", "two")
got = shares(sides, 1.5)
verdict(close(got, [70, 30]), f"resumed, 70/30: {text(got)}")
pid = daemon_pid()
os.kill(pid, signal.SIGKILL)
got = shares(sides, 1.5)
verdict(close(got, [70, 30]), f"the daemon killed, 70/30: {text(got)}")
listed = run("ls").stdout
verdict("one" in listed and "two" in listed and daemon_pid() != pid, "its successor knows both")
run("resize", "one", "-s", "40"), run("resize", "two", "-s", "60")
got = shares(sides, 1.5, settle=1.0)
verdict(close(got, [40, 60]), f"and divides 40/60: {text(got)}")
for name in ("one", "two"):
    run("rm", name, "--force")
