"""Which devices are served, streams and pinned memory: groups do not hold each other up, and memory comes back."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from native import EXECUTORS, PATIENCE_S, WINDOW_BYTES, arrive, described, device_for
from ranks import HERE
from stand_in import BACKEND, TYPE, StandIn, backend_of, error_of, here, loaded

POOL = range(8, 64)  # the streams of torch's pool on a device


def crossed(library: str) -> list[float]:
    """On a rank: two groups on two streams, called in opposite orders; the first is held until all have called."""
    gpu = here(library)
    groups = [gpu.group, gpu.new_group()]
    sums = []
    for step in range(5):
        tensors = [gpu.put(torch.full((1000,), float(step + number))) for number in range(2)]
        order = (0, 1) if HERE.rank else (1, 0)
        gpu.hold(1 + order[0])
        for number in order:
            with gpu.stream(1 + number):
                dist.all_reduce(tensors[number], group=groups[number], async_op=True).wait()
        dist.barrier()
        gpu.go(1 + order[0])
        for number in range(2):
            gpu.synchronize(1 + number)
        sums += [float(tensor.cpu()[0]) for tensor in tensors]
    dist.destroy_process_group(groups[1])
    return sums


def early_receive(library: str) -> list[float]:
    """On a rank: a receive whose send comes after a collective delays neither that nor another receive."""
    gpu = here(library)
    came, other, total = (gpu.put(torch.zeros(8)) for _ in range(3))
    if HERE.rank == 0:
        works = [dist.irecv(came, 1, group=gpu.group), dist.irecv(other, 2, group=gpu.group)]
    dist.all_reduce(total.fill_(HERE.rank), group=gpu.group)
    sums = [float(total.cpu()[0])]
    if HERE.rank == 0:
        works[1].wait()
        sums.append(float(other.cpu()[0]))
        dist.send(other, 1, group=gpu.group)
        works[0].wait()
        sums.append(float(came.cpu()[0]))
    elif HERE.rank == 2:
        dist.send(total.fill_(20), 0, group=gpu.group)
    else:
        dist.recv(other, 0, group=gpu.group)
        dist.send(other.fill_(10), 0, group=gpu.group)
    dist.barrier()
    return sums


def overtaken(library: str) -> list[float]:
    """On a rank: results lie in pinned memory, their works gone, while later calls want memory of that size."""
    gpu = here(library)
    tensors = [gpu.put(torch.full((1000,), step if HERE.rank == 0 else 0.0)) for step in (1.0, 2.0, 3.0)]
    gpu.hold()
    for tensor in tensors:
        if HERE.rank == 0:
            gpu.go()
        dist.broadcast(tensor, 0, group=gpu.group, async_op=True)
        dist.barrier(group=gpu.group)  # of the host: the broadcast before it is over there
        if HERE.rank == 0:
            gpu.hold()
    gpu.go()
    dist.all_reduce(gpu.put(torch.ones(1)), group=gpu.group)
    return [float(tensor.cpu()[0]) for tensor in tensors]


def let_go(library: str) -> float:
    """On a rank: works and tensors that are let go at once, while the stream has not come to them."""
    gpu = here(library)
    last = gpu.put(torch.ones(10))
    gpu.hold()
    for _ in range(20):
        dist.all_reduce(copied(last), group=gpu.group, async_op=True)
    work = dist.all_reduce(last, group=gpu.group, async_op=True)
    gpu.go()
    work.wait()
    return float(last.cpu()[0])


def on_two_devices(library: str) -> list[float]:
    """On a rank: tensors of a device that is not the current one, whose stream is held, and of the current one."""
    gpu = here(library)
    tensors = [torch.full((1000,), 1.0 + index).to(f"{TYPE}:{index}") for index in range(2)]
    with gpu.device(1):
        gpu.hold()
    works = [dist.all_reduce(tensor, group=gpu.group, async_op=True) for tensor in tensors]
    works[0].wait()
    with gpu.device(1):
        gpu.go()
    works[1].wait()
    return [float(tensor.cpu()[0]) for tensor in tensors]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor).copy_(tensor, non_blocking=True)


def events_of_later_calls(library: str) -> int:
    """On a rank: how many events are made by forty calls that follow others like them."""
    gpu = here(library)
    staged, queued = gpu.put(torch.ones(8, dtype=torch.uint8)), gpu.put(torch.ones(8))

    def call(times: int) -> int:
        for _ in range(times):
            for tensor in (staged, queued):
                dist.all_reduce(tensor, group=gpu.group)
                tensor.cpu()
        return gpu.functions.stand_in_events_made()

    before = call(10)
    return call(20) - before


def made_by_first_calls(library: str, executor: str) -> tuple[int, int]:
    """On a rank: events and streams that a group's first calls make, many in flight at once, some of them in pieces."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group()
    small, large = gpu.put(torch.ones(1000)), gpu.put(torch.ones(WINDOW_BYTES))
    backend_of(group).eager_connect_single_device(device_for(executor))
    events, streams = gpu.functions.stand_in_events_made(), gpu.streams()
    gpu.hold()
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in (large, *[small] * 20, large)]
    gpu.go()
    for work in works:
        work.wait()
    return gpu.functions.stand_in_events_made() - events, gpu.streams() - streams


@pytest.mark.parametrize("executor", EXECUTORS)
def test_first_calls_make_neither_events_nor_streams(native_pair, stand_in, executor):
    """A rank that is another thread of the process may copy to pageable memory, which lets nobody make any."""
    assert native_pair.run(made_by_first_calls, stand_in, executor) == [(0, 0)] * 2


def test_calls_use_the_events_of_earlier_ones(pair, stand_in):
    """Some are still held by what is freed on another thread."""
    assert all(made < 20 for made in pair.run(events_of_later_calls, stand_in))


def test_two_groups_called_in_opposite_orders(pair, stand_in):
    assert pair.run(crossed, stand_in) == [[2.0 * (step + number) for step in range(5) for number in range(2)]] * 2


def test_a_receive_delays_nobody_else(trio, stand_in):
    assert trio.run(early_receive, stand_in) == [[3.0, 20.0, 10.0], [3.0], [3.0]]


def test_pinned_memory_is_not_used_again_before_the_device_has_read_it(pair, stand_in):
    assert pair.run(overtaken, stand_in) == [[1.0, 2.0, 3.0]] * 2


def test_what_is_let_go_early_disturbs_nobody(pair, stand_in):
    assert pair.run(let_go, stand_in) == [2.0] * 2


def test_devices_have_lanes_of_their_own(pair, stand_in):
    assert pair.run(on_two_devices, stand_in) == [[2.0, 4.0]] * 2


def rounds(gpu: StandIn, group: dist.ProcessGroup, count: int) -> int:
    """Sums of three sizes, each waited for; how much is pinned then."""
    for _ in range(count):
        for size in (1, 5000, 100_000):
            dist.all_reduce(gpu.put(torch.ones(size)), group=group, async_op=True).wait(timedelta(seconds=20))
    return gpu.pinned_bytes()


def used_again(library: str) -> tuple[int, int, bool, int]:
    """On a rank: bytes pinned by a group's first calls, and by all that follow; whether all went with the group."""
    gpu = here(library)
    before = gpu.pinned_bytes()
    group = gpu.new_group()
    first, later = rounds(gpu, group, 1), rounds(gpu, group, 20)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    return first - before, later - before, gpu.pinned_bytes() == before


def test_calls_use_the_memory_of_earlier_ones(pair, stand_in):
    for first, later, gone in pair.run(used_again, stand_in):
        assert 400_000 <= later <= 2 * first
        assert gone


def beside_a_busy_pool(library: str) -> list[float]:
    """On a rank: others hold every stream that torch's pool has; a sum and a message of this device."""
    gpu, group = arrive(library, "SPIN")
    total, came = gpu.put(torch.ones(1000)), gpu.put(torch.full((10,), 1.0 + HERE.rank))
    for number in POOL:
        gpu.hold(number)
    works = [dist.all_reduce(total, group=group, async_op=True)]
    if HERE.rank == 0:
        works.append(dist.isend(came, 1, group=group))
    else:
        works.append(dist.irecv(came, 0, group=group))
    try:
        for work in works:
            work.wait(timedelta(seconds=PATIENCE_S))
    finally:
        for number in POOL:
            gpu.go(number)
    return [float(total.cpu()[-1]), float(came.cpu()[-1])]


def streams_of_groups(library: str) -> list[int]:
    """On a rank: how many streams there are after each of three groups that come and go."""
    gpu = here(library)
    counts = []
    for _ in range(3):
        group = gpu.new_group()
        rounds(gpu, group, 1)
        dist.destroy_process_group(group)
        del group
        gc.collect()
        counts.append(gpu.streams())
    return counts


def in_one_queue(library: str) -> tuple[float, str]:
    """On a rank whose device has one hardware queue: the sum of two groups, and what is said."""
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    gpu, group = arrive(library, "SPIN")
    total = gpu.put(torch.ones(10))
    for one in (group, gpu.new_group()):
        dist.all_reduce(total, group=one)
    return float(total.cpu()[0]), described(group)


@pytest.mark.parametrize("window_bytes", [0, WINDOW_BYTES])
def test_what_others_do_with_torchs_pool_holds_nothing_up(world_of, stand_in, window_bytes):
    world = world_of(2, window_bytes=window_bytes)
    assert world.run(beside_a_busy_pool, stand_in) == [[2.0, 1.0]] * 2


def test_groups_use_the_streams_of_earlier_ones(pair, stand_in):
    for first, *later in pair.run(streams_of_groups, stand_in):
        assert later == [first] * 2


def test_one_hardware_queue_for_all_is_said(run_on_fresh_ranks, stand_in):
    world = run_on_fresh_ranks(2, window_bytes=WINDOW_BYTES)
    world.join()
    for total, text in world.run(in_one_queue, stand_in):
        assert total == 4.0
        assert "; CUDA_DEVICE_MAX_CONNECTIONS=1 lets all streams of a device share one hardware queue" in text
    for rank in range(2):
        assert world.stderr(rank).count("warning: CUDA_DEVICE_MAX_CONNECTIONS=1") == 1


def unserved(library: str) -> str:
    """On a rank: torch has the device, ringdp does not know it."""
    loaded(library)
    group = dist.new_group(range(HERE.size), backend=BACKEND)
    return error_of(lambda: dist.all_reduce(torch.ones(4).to(TYPE), group=group))


def served_again(library: str) -> list[str]:
    from ringdp import _native

    here(library)
    return [error_of(lambda name=name: _native.load().serve_device(name)) for name in (TYPE, "cpu", "cuda")]


def served_without_one(library: str) -> str:
    from ringdp import _native

    os.environ["STAND_IN_DEVICES"] = "0"
    loaded(library)
    return error_of(lambda: _native.load().serve_device(TYPE))


def test_an_unserved_device_is_refused(run_on_fresh_ranks, stand_in):
    world = run_on_fresh_ranks(2)
    world.join()
    for error in world.run(unserved, stand_in):
        assert error.startswith(f"InvalidArgument: all_reduce: the tensor is on {TYPE}:0, and this build of ringdp")


def test_a_device_is_served_once(pair, stand_in):
    for errors in pair.run(served_again, stand_in):
        for error, name in zip(errors, (TYPE, "cpu", "cuda"), strict=True):
            assert error.startswith(f"InvalidArgument: serve_device: {name} is served")


def test_a_library_without_a_device_serves_none(run_on_fresh_ranks, stand_in):
    [error] = run_on_fresh_ranks(1).run(served_without_one, stand_in)
    assert error.startswith("InvalidArgument: serve_device: privateuseone needs a libringdp_gpu.so that has a device")


ROOT = Path(__file__).resolve().parents[3]
BARRIER = """
import torch, torch.distributed as dist
dist.init_process_group("ringdp", store=dist.HashStore(), rank=0, world_size=1)
options = dist.BarrierOptions()
options.device = torch.device("cuda", 0)
try:
    dist.group.WORLD._get_backend(torch.device("cuda")).barrier(options).wait()
    print("passed")
except RuntimeError as error:
    print(error)
"""


def library(folder: Path, devices: int) -> str:
    """A library with all functions of the C interface, which has this many devices and can do nothing."""
    names = re.findall(r'symbols\.find\("(\w+)"', (ROOT / "csrc/device/runtime/library.cc").read_text())
    abi = re.search(r"RD_GPU_ABI = (\d+)", (ROOT / "csrc/device/runtime/ringdp_gpu.h").read_text())
    special = {
        "rd_gpu_abi": f"int rd_gpu_abi(void) {{ return {abi[1]}; }}",
        "rd_gpu_count": f"int rd_gpu_count(int* count) {{ *count = {devices}; return 0; }}",
        "rd_gpu_error": 'const char* rd_gpu_error(void) { return "it can do nothing"; }',
    }
    text = [special.get(name, f"int {name}(void) {{ return 1; }}") for name in sorted({*names, *special})]
    source, built = folder / f"counts_{devices}.c", folder / f"counts_{devices}.so"
    source.write_text("\n".join(text))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(built), str(source)], check=True, timeout=60)
    return str(built)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("devices", "served"), [(0, False), (1, True)])
def test_cuda_is_served_where_the_library_finds_a_device(run_warm, tmp_path, devices, served):
    result = run_warm("-c", BARRIER, RINGDP_GPU_LIBRARY=library(tmp_path, devices))
    assert result.returncode == 0, result.stderr
    assert ("passed" in result.stdout) != served
