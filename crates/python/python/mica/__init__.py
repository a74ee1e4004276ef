"""Virtual GPUs, and a compute library in them.

    >>> import mica
    >>> gpu = mica.Vgpu(memory="64MiB", share=30)
    >>> a = gpu.array([[1.0, 2.0], [3.0, 4.0]])
    >>> gpu.matmul(a, a).tolist()
    [[7.0, 10.0], [15.0, 22.0]]
"""

import array as _array
import json as _json
import os as _os
import shutil as _shutil
import subprocess as _subprocess

from . import mica_native as _native
from .mica_native import Expr, MicaError, NotConnectedError, OutOfMemoryError, Tensor

__all__ = [
    "Daemon", "Expr", "MicaError", "NotConnectedError", "OutOfMemoryError", "Tensor", "Vgpu",
    "command", "create", "gpus", "list", "remove", "resize", "resume", "run", "show", "size", "suspend",
]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def size(value):
    """Bytes of a size: a number of bytes, or text such as "8GiB"."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    digits = text.rstrip("BbIiKkMmGgTt ")
    unit = text[len(digits):].strip().upper()
    try:
        number = float(digits) * _UNITS[unit]
    except (KeyError, ValueError):
        raise ValueError(f"{value!r} is not a size: write 8GiB or 512MiB") from None
    if not number >= 0 or number != int(number):
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(number)


# Types of buffers whose elements a tensor can have.
_FORMATS = {"f": "float32", "e": "float16", "b": "int8", "i": "int32", "l": "int32"}
_CODES = {"float32": "f", "int8": "b", "int32": "i"}


class Vgpu(_native.Vgpu):
    """A virtual GPU and its compute library.

    In a program that `mica run` started, `Vgpu()` without limits is the virtual GPU of the program, whose memory is shared with other
    libraries of the process. With limits, or elsewhere, it is a new one on the software GPU in this process.
    """

    def __new__(cls, memory=None, share=None, *, tensor_cores=True):
        inside = bool(_os.environ.get("MICA_TOKEN"))
        joins = inside and memory is None and share is None and tensor_cores
        return super().__new__(cls, None if memory is None else size(memory), share, tensor_cores, joins)

    def array(self, values, dtype=None):
        """A tensor with the values of an array (DLPack), of a buffer, or of nested lists of numbers."""
        made = values if isinstance(values, Tensor) else self._of_array(values)
        return made if dtype is None or made.dtype == dtype else made.astype(dtype)

    def _of_array(self, values):
        if hasattr(values, "__dlpack__"):
            try:
                return self.from_dlpack(values)
            except BufferError:
                # NumPy does not export what may not be written; it is a buffer, too.
                pass
        try:
            view = memoryview(values)
        except TypeError:
            return self._of_lists(values)
        return self._of_buffer(view)

    def _of_buffer(self, view):
        kind = _FORMATS.get(view.format.lstrip("@=<"))
        if kind is None or view.itemsize > 4:
            raise TypeError(f"a buffer of format {view.format!r} and {view.itemsize} bytes: "
                            "float32, float16, int8 and int32 can be taken")
        return self.from_bytes(view.tobytes(), [*view.shape], kind)

    def _of_lists(self, values):
        shape, flat = [], values if isinstance(values, (builtins_list, tuple)) else [values]
        if flat is values:
            while isinstance(flat[0] if flat else None, (builtins_list, tuple)):
                shape.append(len(flat))
                if len({len(part) for part in flat}) != 1:
                    raise ValueError("nested lists of different lengths")
                flat = [value for part in flat for value in part]
                shape.append(len(flat) // _product(shape))
                shape = shape[:-1]
            shape.append(len(flat) // max(_product(shape), 1))
        return self.from_bytes(_array.array("f", flat).tobytes(), shape, "float32")

    def zeros(self, shape, dtype="float32"):
        return super().zeros([*shape], dtype)

    def uniform(self, shape, dtype="float32", *, seed=0, low=0.0, high=1.0):
        return super().uniform([*shape], dtype, seed, low, high)

    def __repr__(self):
        used, limit = self.memory()
        return f"mica.Vgpu({self.name}, {used} of {limit} bytes used)"


def _product(numbers):
    product = 1
    for number in numbers:
        product *= number
    return product


def _numpy(tensor, dtype=None, copy=None):
    """The values as an array of NumPy; bfloat16 becomes float32, int4 int8."""
    import numpy
    whole = {"bfloat16": "float32", "int4": "int8"}.get(tensor.dtype)
    source = tensor.astype(whole) if whole else tensor
    made = numpy.frombuffer(bytearray(source.tobytes()), dtype=source.dtype).reshape(tensor.shape)
    return made if dtype is None else made.astype(dtype)


def _tolist(tensor):
    """The values as nested lists."""
    source = tensor if tensor.dtype in _CODES else tensor.astype("int8" if tensor.dtype == "int4" else "float32")
    flat = _array.array(_CODES[source.dtype], source.tobytes()).tolist()
    for axis in reversed(tensor.shape[1:]):
        flat = [flat[at:at + axis] for at in range(0, len(flat), axis)] if axis else []
    return flat if tensor.shape else flat[0]


Tensor.numpy = _numpy
Tensor.__array__ = _numpy
Tensor.tolist = _tolist


def command():
    """The path of the `mica` command: MICA_COMMAND, else the one of the path."""
    found = _os.environ.get("MICA_COMMAND") or _shutil.which("mica")
    if not found:
        raise MicaError("the command mica is not in the path: set MICA_COMMAND to where it is")
    return found


def _limits(memory, share):
    limits = {}
    if memory is not None:
        limits["memory_limit_bytes"] = size(memory)
    if share is not None:
        limits["share_percent"] = share
    return limits


class Daemon:
    """The daemon of this host. With `start`, one is started where none answers."""

    def __init__(self, *, start=False):
        self._native = _native.Daemon(command() if start else None)

    def gpus(self):
        """The GPUs of the host."""
        return _json.loads(self._native.gpus())

    def list(self):
        """All virtual GPUs that you may see."""
        return _json.loads(self._native.list())

    def show(self, name):
        """One virtual GPU."""
        return _json.loads(self._native.show(name))

    def create(self, name=None, *, memory=None, share=None, **more):
        """Makes a virtual GPU; `more` are fields of the control API, such as `mode="isolated"` or `cap=True`."""
        spec = {**_limits(memory, share), **more}
        if name is not None:
            spec["name"] = name
        return _json.loads(self._native.create(_json.dumps(spec)))

    def resize(self, name, *, memory=None, share=None, **more):
        """Changes limits of a virtual GPU."""
        return _json.loads(self._native.resize(name, _json.dumps({**_limits(memory, share), **more})))

    def suspend(self, name):
        """Holds the work of a virtual GPU."""
        return _json.loads(self._native.suspend(name))

    def resume(self, name):
        """Lets the work of a virtual GPU go on."""
        return _json.loads(self._native.resume(name))

    def remove(self, name, *, force=False):
        """Removes a virtual GPU; with `force` also while programs are in it."""
        self._native.remove(name, force)


def gpus():
    return Daemon().gpus()


def create(name=None, **limits):
    return Daemon(start=True).create(name, **limits)


def show(name):
    return Daemon().show(name)


def resize(name, **limits):
    return Daemon().resize(name, **limits)


def suspend(name):
    return Daemon().suspend(name)


def resume(name):
    return Daemon().resume(name)


def remove(name, *, force=False):
    Daemon().remove(name, force=force)


def run(program, *, memory=None, share=None, name=None, mode=None, gpu=None, options=(), **how):
    """Runs a program in a virtual GPU of its own, or with `name` in one that exists; as `subprocess.run`, which takes `how`.

    >>> mica.run(["python3", "train.py"], memory="8GiB", share=50, check=True)
    """
    if name is not None:
        if any(value is not None for value in (memory, share, mode, gpu)):
            raise ValueError(f"the virtual GPU {name!r} has its limits: resize it")
        words = [command(), "exec", name, *options]
    else:
        words = [command(), "run", *options]
        for option, value in (("--memory", memory), ("--share", share), ("--mode", mode), ("--gpu", gpu)):
            if value is not None:
                words += [option, str(value)]
    return _subprocess.run([*words, "--", *program], **how)


builtins_list = list


def list():  # noqa: A001 - the name of the command
    return Daemon().list()
