"""The package with NumPy on the software GPU. Each test is a function; `python3 tests/test_mica.py` runs all, or those that are named."""

import array
import contextlib
import fcntl
import io
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import traceback

import mica
import numpy


def vgpu():
    return mica.Vgpu(memory="64MiB", share=50)


def numbers(*shape, seed=1):
    return numpy.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


def near(got, want, tolerance=1e-4):
    got = numpy.asarray(got)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert numpy.allclose(got, want, atol=tolerance), abs(got - want).max()


def raises(kind, words, work, *args, **more):
    try:
        work(*args, **more)
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError(f"no {kind.__name__}")


def test_int4_values_share_bytes_and_their_products_are_exact():
    gpu = vgpu()
    values = [numpy.random.default_rng(seed).integers(-8, 8, shape, "int8") for seed, shape in ((1, (5, 7)), (2, (7, 3)))]
    a, b = (gpu.array(value, "int4") for value in values)
    assert a.dtype == "int4" and len(a.tobytes()) == 18
    assert (a.numpy() == values[0]).all() and b.tolist() == values[1].tolist()
    product = gpu.matmul(a, b)
    assert product.dtype == "int32" and (product.numpy() == values[0].astype("int32") @ values[1]).all()
    assert (gpu.from_bytes(a.tobytes(), [5, 7], "int4").T.numpy() == values[0].T).all()
    raises(BufferError, "share a byte", a.__dlpack__)
    raises(ValueError, "i4 does not go with i8", gpu.matmul, a, b.astype("int8"))


def test_arrays_come_and_go():
    gpu = vgpu()
    for dtype in ("float32", "float16", "int8", "int32"):
        values = (numbers(3, 4, 5) * 100).astype(dtype)
        for given in (values, values.transpose(2, 0, 1), values[:, ::2, 1:]):
            tensor = gpu.array(given)
            assert tensor.dtype == dtype and tensor.shape == given.shape
            assert (tensor.numpy() == given).all()
            assert (numpy.from_dlpack(tensor) == given).all()
            assert (numpy.asarray(tensor) == given).all()
    fixed = numbers(7)
    fixed.flags.writeable = False
    assert (gpu.array(fixed).numpy() == fixed).all()
    assert gpu.array(3.0).tolist() == 3.0
    assert gpu.array([[1, 2], [3, 4], [5, 6]]).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert gpu.array([[[1], [2]]]).shape == (1, 2, 1)
    assert gpu.array(array.array("i", [1, -2, 3])).tolist() == [1, -2, 3]
    assert gpu.array(array.array("f", [0.5])).astype("bfloat16").tolist() == [0.5]
    assert gpu.zeros((2, 3)).tolist() == [[0, 0, 0]] * 2
    raises(ValueError, "different lengths", gpu.array, [[1], [2, 3]])
    raises(TypeError, "format 'd'", gpu.array, memoryview(array.array("d", [1])))
    raises(TypeError, "type code 2 with 64 bits", gpu.array, numbers(2).astype("float64"))
    raises(ValueError, "negative strides", gpu.array, numbers(4)[::-1])


def test_what_is_exported_outlives_the_tensor():
    gpu = vgpu()
    values = numbers(1000)
    kept = [numpy.from_dlpack(gpu.array(values)) for _ in range(20)]
    capsule = gpu.array(values).__dlpack__()
    del gpu, capsule
    for array in kept:
        assert (array == values).all()


def test_operations_agree_with_numpy():
    gpu = vgpu()
    a, b, bias = numbers(37, 19), numbers(19, 23, seed=2), numbers(23, seed=3)
    ta, tb = gpu.array(a), gpu.array(b)
    near(gpu.matmul(ta, tb), a @ b)
    near(gpu.matmul(tb.T, ta.T), (a @ b).T)
    near(gpu.matmul(ta, tb, bias=gpu.array(bias), activation="relu", alpha=2.0), numpy.maximum(2 * a @ b + bias, 0))
    near(gpu.matmul(gpu.array(a, "float16"), gpu.array(b, "float16"), out="float32"), a @ b, 2e-2)
    stacks = numbers(3, 4, 5), numbers(3, 5, 6, seed=2)
    near(gpu.matmul(*map(gpu.array, stacks)), stacks[0] @ stacks[1])
    e = numpy.exp(a - a.max(1, keepdims=True))
    near(gpu.softmax(ta), e / e.sum(1, keepdims=True))
    normal = (a - a.mean(1, keepdims=True)) / numpy.sqrt(a.var(1, keepdims=True) + 1e-5)
    weight = numbers(19, seed=4)
    near(gpu.layer_norm(ta, gpu.array(weight), gpu.array(weight)), normal * weight + weight)
    near(gpu.rms_norm(ta), a / numpy.sqrt((a * a).mean(1, keepdims=True) + 1e-5))
    c, rest = numbers(*(a @ b).shape, seed=5), numbers(*(a @ b).shape, seed=6)
    got = gpu.matmul(ta, tb, alpha=0.5, c=gpu.array(c), beta=-2.0, activation="relu", scale=3.0, residual=gpu.array(rest))
    near(got, 3 * numpy.maximum(a @ b / 2 - 2 * c, 0) + rest)
    near(gpu.matmul(ta, tb, c=gpu.array(c)), a @ b + c)
    x, y = mica.Expr(0), mica.Expr(1)
    near(gpu.map((x + 1) * 2 - y / 4 + (3 - x).exp().maximum(2.0), ta, ta), (a + 1) * 2 - a / 4 + numpy.maximum(numpy.exp(3 - a), 2))
    near(gpu.map(x.gelu(), ta), a * 0.5 * (1 + numpy.vectorize(math.erf)(a / math.sqrt(2))))


def test_attention_agrees_with_numpy():
    gpu = vgpu()
    q, k, v = numbers(1, 2, 20, 16), numbers(1, 2, 20, 16, seed=2), numbers(1, 2, 20, 16, seed=3)
    for causal in (False, True):
        scores = q @ k.swapaxes(2, 3) / 4
        if causal:
            scores = numpy.where(numpy.tril(numpy.ones((20, 20))) > 0, scores, -numpy.inf)
        e = numpy.exp(scores - scores.max(3, keepdims=True))
        near(gpu.attention(gpu.array(q), gpu.array(k), gpu.array(v), causal=causal), e / e.sum(3, keepdims=True) @ v)


def test_limits_and_mistakes_are_exceptions():
    gpu = vgpu()
    used, limit = gpu.memory()
    assert limit == 64 << 20 and used <= limit
    raises(mica.OutOfMemoryError, "OUT_OF_MEMORY", gpu.zeros, (65 << 20,), "int8")
    gpu.resize(128 << 20)
    assert gpu.zeros((65 << 20,), "int8").shape == (65 << 20,)
    a = gpu.zeros((2, 3))
    raises(ValueError, "[2, 3] does not fit", gpu.matmul, a, a)
    raises(ValueError, "is not an activation", gpu.matmul, a, a.T, activation="sine")
    raises(TypeError, "float64 is not a type of a tensor", gpu.zeros, (1,), "float64")
    raises(ValueError, "share of 300", mica.Vgpu, share=300)
    raises(ValueError, "is not a size", mica.size, "many")
    assert mica.size("1.5GiB") == 3 << 29 and mica.size("2 MB") == 2_000_000 and mica.size(7) == 7
    assert [provider[0] for provider in gpu.providers()] == ["cuBLASLt"]


def stop_daemon(folder):
    subprocess.run([mica.command(), "daemon", "--stop"], check=True, stdout=subprocess.DEVNULL)
    # The daemon answers before it has written its state; it holds this lock to its end.
    with open(pathlib.Path(folder) / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_virtual_gpus_of_a_daemon():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MICA_RUNTIME_DIR"] = folder
        raises(mica.NotConnectedError, "no Mica daemon answers", mica.list)
        made = mica.create("a", memory="64MiB", share=30, mode="isolated")
        try:
            assert made["name"] == "a" and [v["name"] for v in mica.list()] == ["a"]
            assert mica.gpus()
            assert "a" == mica.resize("a", memory="32MiB")["name"] == mica.suspend("a")["name"] == mica.resume("a")["name"]
            assert (32 << 20) in mica.show("a").values()
            raises(mica.MicaError, "none", mica.show, "none")
            raises(ValueError, "memory_limit", mica.create, "b", memory_limit="2")
            done = mica.run(["sh", "-c", "echo $MICA_TOKEN"], name="a", capture_output=True, text=True, check=True)
            assert len(done.stdout.strip()) == 32, done
            done = mica.run(["sh", "-c", "exit 3"], memory="32MiB")
            assert done.returncode == 3, done
            mica.remove("a")
            assert mica.list() == []
        finally:
            stop_daemon(folder)


def test_the_examples_of_the_guide():
    page = pathlib.Path(__file__).resolve().parents[3] / "docs/guide/src/python.md"
    first, second = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(first, str(page), "exec"), {})
    b = numpy.array([[5, 11], [11, 25]], "float32")
    near(numpy.array(eval(said.getvalue())), numpy.exp(numpy.array([[1, 2], [3, 4]], "float32") - b) / 2)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "train.py").write_text("open('trained', 'a').write('.')")
        os.environ["MICA_RUNTIME_DIR"] = folder
        before = os.getcwd()
        os.chdir(folder)
        try:
            exec(compile(second, str(page), "exec"), {})
            assert pathlib.Path("trained").read_text() == ".."
        finally:
            os.chdir(before)
            stop_daemon(folder)


if __name__ == "__main__":
    tests = {name: work for name, work in globals().items() if name.startswith("test_")}
    chosen = sys.argv[1:] or tests
    failed = []
    for name in chosen:
        try:
            tests[name]()
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"{name}: {'FAILED' if name in failed else 'ok'}", flush=True)
    sys.exit(1 if failed else 0)
