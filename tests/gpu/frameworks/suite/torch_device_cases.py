"""What PyTorch asks of the device beside kernels: streams, events, graphs, allocators, pinned memory, other processes, faults."""
import os
import re
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as functional

from case import captured, case
from torch_math_cases import DEVICE, close, healthy, rand  # noqa: F401
from torch_nn_cases import mlp, seeded

MIB = 1 << 20


def warmed_up(work, times=3):
    """Runs the work on another stream first, as capture demands."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            work()
    torch.cuda.current_stream().wait_stream(side)


@case
def streams():
    a, results = rand(512, 512, seed=1), []
    low, high = torch.cuda.Stream(priority=0), torch.cuda.Stream(priority=-1)
    for stream in (low, high):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results.append(a @ a + len(results))
    for stream, result in zip((low, high), results):
        torch.cuda.current_stream().wait_stream(stream)
        result.record_stream(torch.cuda.current_stream())
    assert high.priority < low.priority
    return close(results[1] - results[0], torch.ones(512, 512), 1e-3), results


@case
def events_and_timing():
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    torch.cuda._sleep(200_000_000)
    end.record()
    pending = not end.query() and not torch.cuda.current_stream().query()
    end.synchronize()
    took = begin.elapsed_time(end)
    assert 20 < took < 5000, f"{took} ms for 200 million cycles"
    blocking = torch.cuda.Event(blocking=True)
    blocking.record()
    blocking.synchronize()
    return ["pending" if pending else "not pending", "done" if end.query() and blocking.query() else "not done"]


@case
def pinned_memory():
    source = torch.arange(4 * MIB, dtype=torch.float32).pin_memory()
    back = torch.empty_like(source, pin_memory=True)
    on_device = source.to(DEVICE, non_blocking=True)
    back.copy_(on_device * 2, non_blocking=True)
    torch.cuda.synchronize()
    assert source.is_pinned() and torch.equal(back, source * 2)
    pageable = torch.arange(3 * MIB, dtype=torch.int64)
    assert torch.equal(pageable.to(DEVICE).cpu(), pageable)
    for count in (1, 3, 1023, 70001):
        assert torch.equal(pageable[:count].to(DEVICE).cpu(), pageable[:count])
    strided = rand(100, 200, seed=1)
    assert torch.equal(strided.t()[::3].cpu(), strided.cpu().t()[::3])
    return back, strided


@case
def host_registered():
    host, runtime = torch.zeros(MIB), torch.cuda.cudart()
    torch.cuda.check_error(runtime.cudaHostRegister(host.data_ptr(), host.numel() * 4, 0))
    try:
        pinned = host.is_pinned()
        host.copy_(torch.ones(MIB, device=DEVICE), non_blocking=True)
        torch.cuda.synchronize()
    finally:
        torch.cuda.check_error(runtime.cudaHostUnregister(host.data_ptr()))
    return ["pinned" if pinned else "not pinned"], host.sum()


@case
def memory_statistics():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    held = torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE)
    during, peak = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
    del held
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total and torch.cuda.memory_snapshot() is not None
    properties = torch.cuda.get_device_properties(0)
    assert properties.total_memory >= total * 0.9
    return during, peak, torch.cuda.memory_allocated() - before, [properties.major, properties.minor, properties.multi_processor_count, properties.warp_size]


@case
def out_of_memory():
    try:
        torch.empty(1 << 42, dtype=torch.uint8, device=DEVICE)
        raise AssertionError("4 TiB were given")
    except torch.cuda.OutOfMemoryError as error:
        assert "out of memory" in str(error)
    return torch.ones(MIB, device=DEVICE).sum()


@case
def memory_pool_object():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(8 * MIB, device=DEVICE)
    assert len(pool.snapshot()) > 0
    return inside.sum()


@case
def graph_replay():
    a = rand(256, 256, seed=1)
    out = torch.empty_like(a)
    warmed_up(lambda: torch.mm(a, a, out=out))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mm(a, a, out=out)
        out.add_(1)
    results = []
    for seed in range(4):
        a.copy_(rand(256, 256, seed=seed))
        graph.replay()
        results.append(close(out, a.cpu().double() @ a.cpu().double() + 1, 1e-5).clone())
    return results


@case
def graph_private_pool():
    """Two graphs that share one pool, replayed in the order of their capture."""
    x, pool = rand(1000, seed=1), torch.cuda.graph_pool_handle()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=pool):
        middle = (x * 2).relu()
    with torch.cuda.graph(second, pool=pool):
        end = middle.cumsum(0) + x
    for seed in (2, 3):
        x.copy_(rand(1000, seed=seed))
        first.replay()
        second.replay()
    want = (x.cpu().double() * 2).relu().cumsum(0) + x.cpu().double()
    return close(end, want, 1e-5)


@case
def graph_fork_and_join():
    """A capture that spreads to a second stream; convolution and attention inside."""
    side, x, image = torch.cuda.Stream(), rand(2, 4, 64, 64, seed=1, dtype=torch.float16), rand(2, 3, 32, 32, seed=2)
    conv = seeded(lambda: nn.Conv2d(3, 8, 3))

    def work():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            left = functional.scaled_dot_product_attention(x, x, x)
        right = conv(image)
        torch.cuda.current_stream().wait_stream(side)
        return left.float().sum() + right.sum(), left, right

    with torch.no_grad():
        warmed_up(work)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total, left, right = work()
        graph.replay()
        want = work()
        close(left, want[1], 1e-2)
        close(right, want[2], 1e-3)
    return left, right


@case
def graph_random_numbers():
    torch.cuda.manual_seed(5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = torch.randn(10000, device=DEVICE)
    results = []
    for _ in range(3):
        graph.replay()
        results.append(drawn.clone())
    assert not torch.equal(results[0], results[1])
    return results


@case(tolerance=1e-3)
def graphed_callables():
    model, x, y = seeded(mlp), rand(64, 32, seed=1), rand(64, 8, seed=2)
    graphed = torch.cuda.make_graphed_callables(model, (x.clone(),))
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(10):
        optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(graphed(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    assert losses[-1] < losses[0]
    return torch.stack(losses)


@case(tolerance=1e-3)
def graph_training():
    """Forward, backward and optimizer in one graph."""
    model, x, y = seeded(mlp), rand(64, 32, seed=1), rand(64, 8, seed=2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    warmed_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(20):
        graph.replay()
        losses.append(loss.detach().clone())
    assert losses[-1] < 0.8 * losses[0]
    return torch.stack(losses)


@case(own=True)
def capture_wait():
    """A device-wide wait is illegal during capture; afterwards the device works. PyTorch's allocator does not recover: own process."""
    x, graph = rand(100, seed=1), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            x.add(1)
            torch.cuda.synchronize()
        message = "captured"
    except RuntimeError as error:
        message = str(error).splitlines()[0]
    return message, x.sum()


@case(seconds=40)
def data_loader():
    """Forked workers of a process that uses the device, and its pinning thread."""
    data = torch.utils.data.TensorDataset(torch.arange(2000, dtype=torch.float32))
    loader = torch.utils.data.DataLoader(data, batch_size=100, num_workers=2, pin_memory=True)
    return torch.stack([batch[0].to(DEVICE, non_blocking=True).sum() for batch in loader])


@case(own=True, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
def expandable_segments():
    held = []
    for step in range(1, 12):
        held.append(torch.full((step * 3 * MIB,), float(step), device=DEVICE))
        if step % 3 == 0:
            del held[0]
    torch.cuda.empty_cache()
    assert any(segment.get("is_expandable") for segment in torch.cuda.memory_snapshot())
    return [one.mean() for one in held], rand(256, 256, seed=1) @ rand(256, 256, seed=2)


@case(own=True, env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
def malloc_async():
    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    total = torch.zeros((), device=DEVICE)
    for step in range(1, 50):
        total += torch.ones(step * 100_000, device=DEVICE).sum()
    assert torch.cuda.memory_allocated() < 100 * MIB < torch.cuda.mem_get_info()[1]
    return total, rand(256, 256, seed=1) @ rand(256, 256, seed=2)


@case(own=True, env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
def malloc_async_graph():
    x = rand(10000, seed=1)
    warmed_up(lambda: (x * 2).cumsum(0) + 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = (x * 2).cumsum(0) + 1
    for seed in (2, 3):
        x.copy_(rand(10000, seed=seed))
        graph.replay()
    return close(out, (x.cpu().double() * 2).cumsum(0) + 1, 1e-4)


def share_with_parent(inbox, outbox, done):
    """The other process: adds one to the parent's tensor, sends one of its own."""
    theirs = inbox.get(timeout=50)
    theirs.add_(1)
    torch.cuda.synchronize()
    mine = torch.full((1000,), 7.0, device="cuda")
    outbox.put(float(theirs.sum()))
    outbox.put(mine)
    done.wait(50)
    del theirs, mine


@case(own=True)
def multiprocessing():
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox, done = context.Queue(), context.Queue(), context.Event()
    child = context.Process(target=share_with_parent, args=(inbox, outbox, done), daemon=True)
    child.start()
    mine = torch.arange(1000, dtype=torch.float32, device=DEVICE)
    inbox.put(mine)
    total = outbox.get(timeout=50)
    theirs = outbox.get(timeout=50).clone()
    torch.cuda.synchronize()
    done.set()
    child.join(20)
    assert child.exitcode == 0 and float(mine.sum()) == total == 500500
    return mine, theirs


@case(own=True)
def device_assert():
    """Text on stderr, an error in the program, and the next program of the same virtual GPU works."""
    with captured(2) as text:
        try:
            torch.zeros(5, device=DEVICE)[torch.tensor([7], device=DEVICE)].cpu()
            message = "no error"
        except RuntimeError as error:
            message = str(error)
    assert "device-side assert" in message, message
    said = re.search(r"Assertion `[^`]*` failed", text[0])
    assert said, f"no text on stderr: {text[0][:200]!r}"
    program = "import torch; print(int(torch.ones(7, device='cuda').sum()))"
    after = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert after.stdout.strip() == "7", f"the next program: {after.stderr[-200:]}"
    return said.group(0), after.stdout.strip()


@case(own=True)
def nccl_of_one():
    from torch import distributed

    with tempfile.TemporaryDirectory() as folder:
        meeting = "file://" + os.path.join(folder, "meeting")
        distributed.init_process_group("nccl", init_method=meeting, rank=0, world_size=1, device_id=torch.device("cuda:0"))
        x = rand(1000, seed=1)
        distributed.all_reduce(x)
        gathered = [torch.empty_like(x)]
        distributed.all_gather(gathered, x)
        distributed.barrier()
        torch.cuda.synchronize()
        distributed.destroy_process_group()
    return x, gathered


@case(own=True, optional=True)
def profiler():
    """CUPTI; optional, since a worker's kernels are not the program's."""
    a, activity = rand(256, 256, seed=1), torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CPU, activity.CUDA]) as profile:
        (a @ a).relu().sum().item()
    kernels = [one.name for one in profile.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    assert kernels, "no kernel was recorded"
    return "recorded"
