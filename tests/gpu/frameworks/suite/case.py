"""What a case of the framework suite is: its options, and the digest of its result.

A case is a function without arguments in NAME_cases.py, marked with @case. It checks its result itself and returns numbers, arrays or text;
their digest is compared between the bare driver and the modes of Mica. The options of @case are literals: they are read from
the source, without importing the framework, by the driver of the suite as well as by the runner."""
import ast
import contextlib
import ctypes
import dataclasses
import hashlib
import os
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# Where the files of cases are; tests of the suite itself have their own.
CASES_FOLDER = os.environ.get("SUITE_CASES_FOLDER", HERE)


@dataclasses.dataclass
class Case:
    """One case as its source declares it."""

    framework: str
    name: str
    # How far two results may be apart, relative to the mean magnitude of the array.
    tolerance: float = 1e-5
    # Runs in a process of its own: it ends its context or needs another environment.
    own: bool = False
    env: dict = dataclasses.field(default_factory=dict)
    # A failure in a mode is shown, but is not counted.
    optional: bool = False
    seconds: int = 60


def case(function=None, **_options):
    """Marks a case. The options stand in the source; see `read_cases`."""
    return function if function else lambda marked: marked


def read_cases(framework):
    """The cases of one framework, in the order of the source."""
    with open(os.path.join(CASES_FOLDER, f"{framework}_cases.py")) as source:
        tree = ast.parse(source.read())
    found = []
    for node in tree.body:
        for mark in getattr(node, "decorator_list", []):
            call = mark if isinstance(mark, ast.Call) else None
            if getattr(call.func if call else mark, "id", None) == "case":
                options = {word.arg: ast.literal_eval(word.value) for word in (call.keywords if call else [])}
                found.append(Case(framework, node.name, **options))
    return found


def frameworks():
    """Every framework that has a file of cases."""
    return sorted(name[: -len("_cases.py")] for name in os.listdir(CASES_FOLDER) if name.endswith("_cases.py"))


@contextlib.contextmanager
def captured(descriptor):
    """Collects what the process writes to a descriptor, the C library's buffer and the GPU's text included, in a list of one string."""
    text, libc = [], ctypes.CDLL(None)
    libc.fflush(None)
    with tempfile.TemporaryFile() as sink:
        saved = os.dup(descriptor)
        os.dup2(sink.fileno(), descriptor)
        try:
            yield text
        finally:
            libc.fflush(None)
            os.dup2(saved, descriptor)
            os.close(saved)
            sink.seek(0)
            text.append(sink.read().decode(errors="replace"))


def as_numpy(value):
    """A numpy array of an array of any framework; None for anything else."""
    import numpy

    if hasattr(value, "detach"):
        value = value.detach()
        if value.layout.__str__() != "torch.strided":
            value = value.to_dense()
        if value.dtype.is_floating_point and value.element_size() < 4:
            value = value.float()
        return value.cpu().numpy()
    if hasattr(value, "copy_to_host"):
        return value.copy_to_host()
    if hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
        return value.get()
    if hasattr(value, "addressable_shards"):
        return numpy.asarray(value.astype("float32") if value.dtype.name in ("bfloat16", "float16") else value)
    return value if isinstance(value, (numpy.ndarray, numpy.generic)) else None


def digest_array(array):
    """Count, mean, mean magnitude, a weighted sum and eight samples of an array, and the hash of its bytes."""
    import numpy

    array = numpy.ascontiguousarray(array)
    flat = array.reshape(-1)
    exact = hashlib.sha256(flat.tobytes()).hexdigest()[:12]
    if numpy.iscomplexobj(flat):
        flat = numpy.stack([flat.real, flat.imag], -1).reshape(-1)
    flat = flat.astype(numpy.float64)
    if flat.size == 0:
        return {"scale": 0.0, "numbers": [0.0], "exact": exact}
    weights = (numpy.arange(flat.size) * 37 % 101) / 101.0
    picks = flat[numpy.linspace(0, flat.size - 1, 8).astype(int)]
    scale = float(numpy.abs(flat).mean())
    numbers = [float(flat.size), float(flat.mean()), scale, float((flat * weights).mean()), *map(float, picks)]
    return {"scale": scale, "numbers": numbers, "exact": exact}


def digest(value):
    """A list that describes a result: of texts, and of the digests of its numbers and arrays."""
    import numpy

    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [part for key in sorted(value) for part in [str(key), *digest(value[key])]]
    if isinstance(value, (list, tuple)) and not all(isinstance(one, (bool, int, float)) for one in value):
        return [part for one in value for part in digest(one)]
    array = as_numpy(value)
    return [digest_array(numpy.asarray(value) if array is None else array)]


def apart(wanted, got, tolerance):
    """Why two digests differ; None if they agree within the tolerance."""
    if len(wanted) != len(got):
        return f"{len(got)} parts in the result instead of {len(wanted)}"
    for part, (left, right) in enumerate(zip(wanted, got)):
        if isinstance(left, str) or isinstance(right, str):
            if left != right:
                return f"part {part}: {right!r} instead of {left!r}"
            continue
        if left["exact"] == right["exact"]:
            continue
        if len(left["numbers"]) != len(right["numbers"]):
            return f"part {part}: another number of elements"
        for a, b in zip(left["numbers"], right["numbers"]):
            same = a == b or (a != a and b != b)
            if not same and not abs(a - b) <= tolerance * max(left["scale"], abs(a)):
                return f"part {part}: {b:.7g} instead of {a:.7g}"
    return None


def identical(wanted, got):
    """Whether two digests are of the same bits."""
    return [one if isinstance(one, str) else one["exact"] for one in wanted] == [one if isinstance(one, str) else one["exact"] for one in got]
