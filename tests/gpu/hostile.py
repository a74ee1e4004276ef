"""A hostile tenant beside an honest one: the honest tenant's results stay right, and it keeps its share.

usage: hostile.py MICA [--window SECONDS] [--floor PERCENT] [--only ATTACK,...]     runs everything, prints one table
       hostile.py honest STATUS                                                     (the honest tenant, inside a virtual GPU)
       hostile.py attack NAME STATUS HONEST_STATUS                                  (one attack, inside a virtual GPU)

Both tenants have half of the GPU. "of its share" is the honest tenant's throughput beside the attack, as a percentage of
half of its throughput alone: 100 % is what the share promises, and more where the attack leaves time over.
Uses the CUDA driver interface by ctypes and PTX text, so that it runs on a card and on the software GPU alike.
"""
import argparse, ctypes, json, os, random, signal, struct, subprocess, sys, tempfile, time
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

SHARE = 50
# x = x * A + C, N times: exact, and nothing a compiler can shorten.
A, C, WORDS, SECRET = 1664525, 1013904223, 256, 16
WORK = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry work(.param .u64 out, .param .u32 n, .param .u32 seed)
{
    .reg .b64 %d<4>; .reg .b32 %r<10>; .reg .pred %p;
    ld.param.u64 %d0, [out]; ld.param.u32 %r0, [n]; ld.param.u32 %r1, [seed];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    add.u32 %r6, %r1, %r5;
    mov.u32 %r7, 0;
again:
    mad.lo.u32 %r6, %r6, 1664525, 1013904223;
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p, %r7, %r0;
    @%p bra again;
    setp.ge.u32 %p, %r5, 256;
    @%p bra done;
    mul.wide.u32 %d1, %r5, 4; add.u64 %d2, %d0, %d1; st.global.u32 [%d2], %r6;
done:
    ret;
}
\0"""
EVIL = b""".version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[8] = {104, 111, 115, 116, 105, 108, 101, 0};
.visible .entry endless(.param .u64 at)
{
    .reg .b64 %d0; .reg .b32 %r0;
    ld.param.u64 %d0, [at];
again:
    ld.volatile.global.u32 %r0, [%d0]; add.u32 %r0, %r0, 1; st.volatile.global.u32 [%d0], %r0;
    bra again;
}
.visible .entry fault(.param .u64 at)
{
    .reg .b64 %d0; .reg .b32 %r0;
    ld.param.u64 %d0, [at]; mov.u32 %r0, 7; st.global.u32 [%d0], %r0;
    ret;
}
.visible .entry print(.param .u64 at)
{
    .reg .b64 %f, %a; .reg .b32 %r0;
    mov.u64 %f, text; cvta.global.u64 %f, %f; mov.u64 %a, 0;
    { .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %f; st.param.b64 [a], %a;
      call.uni (r), vprintf, (f, a); ld.param.b32 %r0, [r]; }
    ret;
}
\0"""


class Driver:
    """The driver interface; counts what it answers."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.codes = {}

    def call(self, name, *arguments):
        code = getattr(self.lib, name)(*arguments)
        self.codes[code] = self.codes.get(code, 0) + 1
        return code

    def must(self, name, *arguments):
        code = self.call(name, *arguments)
        if code:
            raise SystemExit(f"{name} answers {code}")

    def begin(self):
        self.must("cuInit", 0)
        self.context()

    def context(self):
        context = c_void_p()
        self.must("cuCtxCreate_v2", byref(context), 0, 0)
        return context

    def function(self, image, name):
        module, function = c_void_p(), c_void_p()
        self.must("cuModuleLoadData", byref(module), c_char_p(image))
        self.must("cuModuleGetFunction", byref(function), module, name)
        return function

    def alloc(self, size):
        address = c_uint64()
        self.must("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address

    def launch(self, function, blocks, threads, *values, stream=None):
        pointers = (c_void_p * len(values))(*[ctypes.cast(byref(v), c_void_p) for v in values])
        return self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)


def write(path, value):
    with open(path + ".new", "w") as file:
        json.dump(value, file)
    os.replace(path + ".new", path)


def read(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def expected(n, seed):
    """What `work` leaves for each of the first threads."""
    a, c, power_a, power_c = 1, 0, A, C
    while n:
        if n & 1:
            a, c = a * power_a & 0xFFFFFFFF, (c * power_a + power_c) & 0xFFFFFFFF
        power_a, power_c = power_a * power_a & 0xFFFFFFFF, (power_c * power_a + power_c) & 0xFFFFFFFF
        n >>= 1
    return [(a * (seed + i) + c) & 0xFFFFFFFF for i in range(WORDS)]


class Lane:
    """A stream of the honest tenant with its output; while one lane is checked the other computes."""

    def __init__(self, cu):
        self.cu, self.stream, self.back, self.seed = cu, c_void_p(), c_void_p(), None
        cu.must("cuStreamCreate", byref(self.stream), 1)
        cu.must("cuMemAllocHost_v2", byref(self.back), c_size_t(WORDS * 4))
        # The secret behind the output is nobody else's to read.
        self.out, self.secret = cu.alloc(WORDS * 4 + SECRET), os.urandom(SECRET)
        cu.must("cuMemcpyHtoD_v2", c_uint64(self.out.value + WORDS * 4), self.secret, c_size_t(SECRET))

    def begin(self, work, blocks, n, batch, seed):
        self.n, self.seed = n, seed
        failed = 0
        for _ in range(batch):
            failed += self.cu.launch(work, blocks, 128, self.out, c_uint(n), c_uint(seed), stream=self.stream) != 0
        failed += self.cu.call("cuMemcpyDtoHAsync_v2", self.back, self.out, c_size_t(WORDS * 4), self.stream) != 0
        return failed

    def end(self):
        """Waits; whether the results are right."""
        failed = self.cu.call("cuStreamSynchronize", self.stream)
        found = list((c_uint * WORDS).from_address(self.back.value))
        return not failed and found == expected(self.n, self.seed)


def honest(status):
    cu = Driver()
    cu.begin()
    work, lanes = cu.function(WORK, b"work"), [Lane(cu), Lane(cu)]
    processors = c_int()
    cu.must("cuDeviceGetAttribute", byref(processors), 16, 0)
    # As many blocks as the GPU holds at once, so that work done is time used.
    blocks, n, batch = max(2, processors.value * (16 if processors.value > 32 else 2)), 64, 8
    done = wrong = errors = 0
    # Kernels of about a millisecond. The best of three: the first launch loads code, and others may be running.
    while True:
        best = 1.0
        for _ in range(3):
            began = time.monotonic()
            errors += lanes[0].begin(work, blocks, n, batch, 1)
            wrong += not lanes[0].end()
            best = min(best, (time.monotonic() - began) / batch)
        if best > 0.0008:
            break
        n *= 2
    seed, told, turn = 1, 0, 0
    errors += lanes[0].begin(work, blocks, n, batch, seed)
    while True:
        seed = (seed * 69069 + 1) & 0xFFFF
        turn = 1 - turn
        errors += lanes[turn].begin(work, blocks, n, batch, seed)
        wrong += not lanes[1 - turn].end()
        done += batch
        now = time.monotonic()
        if now - told > 0.02:
            told = now
            state = {"time": now, "done": done, "wrong": wrong, "errors": errors, "n": n}
            write(status, {**state, "address": lanes[0].out.value, "secret": lanes[0].secret.hex()})


def garbage(cu, _):
    """Modules of random bytes, of changed PTX and of changed machine code."""
    images = [WORK, EVIL, b"\x7fELF" + os.urandom(4096), struct.pack("<I", 0xBA55ED50) + os.urandom(4096), os.urandom(4096)]
    state, cubin, size = c_void_p(), c_void_p(), c_size_t()
    if not cu.call("cuLinkCreate_v2", 0, None, None, byref(state)):
        if not cu.call("cuLinkAddData_v2", state, 1, c_char_p(WORK), c_size_t(len(WORK)), b"w", 0, None, None):
            if not cu.call("cuLinkComplete", state, byref(cubin), byref(size)):
                images.append(ctypes.string_at(cubin, size.value))
    while True:
        image = bytearray(random.choice(images))
        for _ in range(random.choice([1, 3, 30])):
            image[random.randrange(len(image))] = random.randrange(256)
        # Whatever length the image claims, it ends in zeros that are there.
        module = c_void_p()
        if not cu.call("cuModuleLoadData", byref(module), c_char_p(bytes(image) + bytes(1 << 20))):
            cu.call("cuModuleUnload", module)
        yield


def endless(cu, _):
    """A kernel that never ends."""
    function, at = cu.function(EVIL, b"endless"), cu.alloc(4)
    cu.launch(function, 64, 64, at)
    while True:
        time.sleep(0.02)
        yield


def faults(cu, _):
    """A program that faults, gets a new context and faults again."""
    while True:
        function = cu.function(EVIL, b"fault")
        cu.launch(function, 1, 1, c_uint64(0x10))
        code = cu.call("cuCtxSynchronize")
        yield
        context = c_void_p()
        cu.call("cuCtxGetCurrent", byref(context))
        cu.call("cuCtxDestroy_v2", context)
        if code == 0 or cu.call("cuCtxCreate_v2", byref(c_void_p()), 0, 0):
            # A process whose driver is gone for good starts anew.
            return


def forging(cu, honest_status):
    """Addresses of the other tenant, made-up handles of shared memory and events."""
    honest_state = read(honest_status)
    address, secret = honest_state.get("address", 0), bytes.fromhex(honest_state.get("secret", ""))
    buffer = (ctypes.c_char * 4096)()
    fault = cu.function(EVIL, b"fault")
    while True:
        near = (address + random.randrange(-1 << 20, 1 << 20)) & ~3
        for at in (address, near, random.getrandbits(47) & ~3):
            cu.call("cuMemcpyDtoH_v2", buffer, c_uint64(at), c_size_t(WORDS * 4 + SECRET))
            if secret and secret in buffer.raw:
                cu.codes["-1"] = cu.codes.get("-1", 0) + 1
            cu.call("cuMemcpyHtoD_v2", c_uint64(at), b"\xff" * 1024, c_size_t(1024))
            cu.call("cuMemFree_v2", c_uint64(at))
            cu.call("cuMemsetD32_v2", c_uint64(at), 0xFFFFFFFF, c_size_t(64))
        handle = (ctypes.c_char * 64).from_buffer_copy(os.urandom(64))

        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_char * 64)]

        cu.call("cuIpcOpenMemHandle_v2", byref(c_uint64()), Handle(handle.raw), 1)
        cu.call("cuIpcOpenEventHandle", byref(c_void_p()), Handle(handle.raw))
        yield
        # A kernel at the other tenant's address faults, or writes this tenant's own memory there.
        if random.random() < 0.02:
            cu.launch(fault, 1, 1, c_uint64(address))
            if cu.call("cuCtxSynchronize"):
                return


def allocations(cu, _):
    """A million allocations, refused or not."""
    for _ in range(1_000_000 // 1000):
        held = []
        for _ in range(1000):
            address = c_uint64()
            size = random.choice([1, 4096, 1 << 21, 1 << 28])
            if not cu.call("cuMemAlloc_v2", byref(address), c_size_t(size)):
                held.append(address)
        for address in held[::2]:
            cu.call("cuMemFree_v2", address)
        yield


def streams(cu, _):
    """Streams and events until they are refused, and on."""
    while True:
        for _ in range(500):
            stream, event = c_void_p(), c_void_p()
            if not cu.call("cuStreamCreate", byref(stream), 1) and not cu.call("cuEventCreate", byref(event), 0):
                cu.call("cuEventRecord", event, stream)
        yield


def registered(cu, _):
    """Registered and pinned host memory until it is refused, and on."""
    import mmap

    kept = []
    while True:
        for size in (4096, 1 << 20, 16 << 20):
            area = mmap.mmap(-1, size)
            at = ctypes.addressof(ctypes.c_char.from_buffer(area))
            kept.append(area)
            if cu.call("cuMemHostRegister_v2", c_void_p(at), c_size_t(size), 0):
                kept.pop()
            cu.call("cuMemAllocHost_v2", byref(c_void_p()), c_size_t(size))
        yield


def printing(cu, _):
    """Kernels that print from every thread."""
    function = cu.function(EVIL, b"print")
    while True:
        cu.launch(function, 64, 128, c_uint64(0))
        cu.call("cuCtxSynchronize")
        yield


def descriptors(cu, _):
    """Shareable memory exported until there are no descriptors, here or in the worker."""

    class Property(ctypes.Structure):
        _fields_ = [("type", c_int), ("handles", c_int), ("location", c_int * 2), ("win32", c_void_p), ("flags", ctypes.c_char * 8)]

    properties = Property(1, 1, (c_int * 2)(1, 0))
    size = c_size_t()
    cu.call("cuMemGetAllocationGranularity", byref(size), byref(properties), 0)
    while True:
        handle, file = c_uint64(), c_int(-1)
        if not cu.call("cuMemCreate", byref(handle), c_size_t(size.value or 1 << 21), byref(properties), c_uint64(0)):
            for _ in range(200):
                if cu.call("cuMemExportToShareableHandle", byref(file), handle, 1, c_uint64(0)):
                    break
        cu.call("cuEventCreate", byref(c_void_p()), 6)
        yield


ATTACKS = {
    "garbage": garbage, "endless": endless, "faults": faults, "forging": forging, "allocations": allocations,
    "streams": streams, "registered": registered, "printing": printing, "descriptors": descriptors, "neighbour": forging,
}
# These run in the honest tenant's own virtual GPU, whose share they use too: only results are judged.
INSIDE = ["neighbour"]


def attack(name, status, honest_status):
    cu = Driver()
    cu.begin()
    told = 0
    for rounds, _ in enumerate(ATTACKS[name](cu, honest_status), 1):
        if time.monotonic() - told > 0.05:
            told = time.monotonic()
            write(status, {"rounds": rounds, "codes": cu.codes})
    write(status, {"rounds": -1, "codes": cu.codes})


class Tenant:
    """A program in a virtual GPU, with all of its processes: one of its own, or one that exists."""

    def __init__(self, mica, folder, name, *arguments, vgpu=None):
        self.status = os.path.join(folder, name + ".json")
        if os.path.exists(self.status):
            os.remove(self.status)
        self.log = os.path.join(folder, name + ".log")
        own = ["run", "--mode", "isolated", "-m", "2GiB", "-s", str(SHARE)]
        command = [mica, *(["exec", vgpu] if vgpu else own), "--", sys.executable, __file__]
        with open(self.log, "w") as log:
            command += [a.replace("STATUS", self.status) for a in arguments]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)

    def wait_for(self, key, seconds=60):
        end = time.monotonic() + seconds
        while key not in read(self.status):
            if time.monotonic() > end or self.process.poll() is not None:
                return False
            time.sleep(0.02)
        return True

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def last_words(self):
        with open(self.log, errors="replace") as log:
            return " ".join(log.read().split("\n")[-4:]).strip()[:300]


def rate(tenant, seconds):
    """Launches in a second, and whether all was right meanwhile."""
    first = read(tenant.status)
    time.sleep(seconds)
    last = read(tenant.status)
    passed = last["time"] - first["time"]
    return ((last["done"] - first["done"]) / passed if passed > 0 else 0.0), last["wrong"] + last["errors"] == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mica")
    parser.add_argument("--window", type=float, default=4.0, help="seconds of each measurement")
    parser.add_argument("--settle", type=float, default=1.5, help="seconds of each attack before the measurement")
    parser.add_argument("--floor", type=float, default=0.0, help="percent of its share that the honest tenant must keep")
    parser.add_argument("--only", default=",".join(ATTACKS), help="attacks, separated by commas")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        parser.error(f"{unknown[0]!r} is not an attack: there are {', '.join(ATTACKS)}")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        create(options.mica, "honest")
        tenant = Tenant(options.mica, folder, "honest", "honest", "STATUS", vgpu="honest")
        try:
            if not tenant.wait_for("done"):
                print(f"verdict\tFAIL\thostile\tthe honest tenant does not run: {tenant.last_words()}")
                return 1
            time.sleep(options.window / 4)
            alone, _ = rate(tenant, options.window)
            table = [("attack", "honest results", "of its share", "what the attacker saw (code: times)")]
            for name in names:
                row, verdict, text = beside(options, folder, tenant, alone, name)
                table.append(row)
                good &= verdict == "pass"
                print(f"verdict\t{verdict}\thostile {name}\t{text}", flush=True)
            again, right = rate(tenant, options.window)
            table.append(("(alone again)", "right" if right else "WRONG", f"{again / alone * 200:.1f} %", ""))
        finally:
            tenant.end()
            mica_command(options.mica, "rm", "honest", "--force")
        verdict, text = killed_while_suspended(options.mica, folder)
        good &= verdict == "pass"
        print(f"verdict\t{verdict}\thostile, killed while suspended\t{text}", flush=True)
        widths = [max(len(row[i]) for row in table) for i in range(3)]
        for row in table:
            print("  ".join([row[i].ljust(widths[i]) for i in range(3)] + [row[3]]).rstrip())
    return 0 if good else 1


def beside(options, folder, tenant, alone, name):
    """Measures the honest tenant beside one attack; a program of the attack that ends is started again."""
    saw, ends = {}, 0
    vgpu = "honest" if name in INSIDE else None
    attacker = Tenant(options.mica, folder, name, "attack", name, "STATUS", tenant.status, vgpu=vgpu)
    began = attacker.wait_for("rounds")
    # A kernel that never ends is known as one after the time in which work drains, and some more.
    time.sleep(options.settle)
    before = read(tenant.status)
    deadline = time.monotonic() + options.window
    while time.monotonic() < deadline:
        if attacker.process.poll() is not None:
            ends += 1
            count(saw, attacker)
            attacker = Tenant(options.mica, folder, name, "attack", name, "STATUS", tenant.status, vgpu=vgpu)
        time.sleep(0.02)
    after = read(tenant.status)
    passed = after["time"] - before["time"]
    measured = (after["done"] - before["done"]) / passed if passed > 0 else 0.0
    right = after["wrong"] + after["errors"] == 0 and tenant.process.poll() is None
    count(saw, attacker)
    attacker.end()
    # The attacker's worker ends within a second of it.
    time.sleep(min(1.5, options.window))
    percent = measured / (alone * SHARE / 100) * 100 if alone else 0.0
    codes = ", ".join(f"{code}: {times}" for code, times in sorted(saw.items(), key=lambda item: int(item[0])))
    codes += f"; ended {ends} times" if ends else ""
    row = (name, "right" if right else "WRONG", f"{percent:.1f} %", codes)
    if not began and not saw:
        return row, "FAIL", f"the attack did not begin: {attacker.last_words()}"
    if not right:
        return row, "FAIL", f"results of the honest tenant are wrong or lost: {after}; {tenant.last_words()}"
    if "-1" in saw:
        return row, "FAIL", f"the attacker read the honest tenant's memory: {codes}"
    if percent < options.floor and name not in INSIDE:
        return row, "FAIL", f"the honest tenant has {percent:.1f} % of its share, less than {options.floor}; {codes}"
    return row, "pass", f"honest results right, {percent:.1f} % of its share; {codes}"


def mica_command(mica, *arguments):
    return subprocess.run([mica, *arguments], capture_output=True, text=True, timeout=60)


def create(mica, name):
    made = mica_command(mica, "create", name, "--mode", "isolated", "-m", "2GiB", "-s", str(SHARE))
    if made.returncode:
        raise SystemExit(f"mica create {name}: {made.stderr.strip()}")


def show(mica, name):
    return json.loads(mica_command(mica, "show", name, "--json").stdout)


def killed_while_suspended(mica, folder):
    """A program is killed while its virtual GPU is suspended in the middle of a kernel: nothing stays charged, and the next
    program runs."""
    create(mica, "stopped")
    try:
        victim = Tenant(mica, folder, "victim", "attack", "endless", "STATUS", "", vgpu="stopped")
        victim.wait_for("rounds")
        held = show(mica, "stopped")["memory_used_bytes"]
        mica_command(mica, "suspend", "stopped")
        victim.end()
        end = time.monotonic() + 10
        while (left := show(mica, "stopped"))["memory_used_bytes"] or left["processes"]:
            if time.monotonic() > end:
                return "FAIL", f"{left['memory_used_bytes']} of {held} bytes and {len(left['processes'])} processes are left"
            time.sleep(0.05)
        mica_command(mica, "resume", "stopped")
        after = Tenant(mica, folder, "after", "honest", "STATUS", vgpu="stopped")
        runs = after.wait_for("done") and not read(after.status)["wrong"]
        after.end()
        if not held or not runs:
            return "FAIL", f"{held} bytes were held; the next program runs: {runs}; {after.last_words()}"
        return "pass", f"{held} bytes held, none left; the next program runs"
    finally:
        mica_command(mica, "rm", "stopped", "--force")


def count(saw, attacker):
    for code, times in read(attacker.status).get("codes", {}).items():
        saw[code] = saw.get(code, 0) + times


if __name__ == "__main__":
    if sys.argv[1:2] == ["honest"]:
        honest(sys.argv[2])
    elif sys.argv[1:2] == ["attack"]:
        attack(*sys.argv[2:5])
    else:
        sys.exit(main())
