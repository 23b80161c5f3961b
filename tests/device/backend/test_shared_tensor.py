"""Memory that devices share: calls and training there copy nothing and keep their bits; all ranks have it, or none."""

from __future__ import annotations

import copy
import gc
import re
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from exchanges import mine
from native import EXECUTORS, PATIENCE_S, arrive, bits, described, device_for, is_void
from ranks import HERE, values_of
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.optimizer import ZeroOptimizer
from stand_in import StandIn, backend_of, error_of
from torch import nn

KEPT: dict[str, Any] = {}  # on a rank: between two calls of a test
LARGE = 50 << 20  # float32: a stand-in's device holds a few of these, not all
LONG = pytest.param(4, torch.float32, marks=pytest.mark.long)
COUNT = 300_003  # float32: more than a window, no whole pack


def shared(group: dist.ProcessGroup, executor: str, values: torch.Tensor) -> torch.Tensor:
    """A tensor in such memory."""
    made = backend_of(group).share_memory(values.numel(), values.dtype, device_for(executor))
    assert made is not None
    return made.copy_(values)


def group_with_memory(library: str, executor: str) -> tuple[StandIn, dist.ProcessGroup]:
    gpu, _ = arrive(library, executor)
    return gpu, gpu.new_group()


def in_place(library: str, executor: str, dtype: torch.dtype) -> tuple[list[bool], int, str]:
    """On a rank: which results have the CPU's bits; bytes that were copied for them; what is said."""
    gpu, group = group_with_memory(library, executor)
    backend = backend_of(group)
    on_host = mine(COUNT, dtype)
    on_device = shared(group, executor, on_host)
    part = mine(1024, dtype)
    whole = shared(group, executor, part.repeat(HERE.size))
    gathered = torch.empty(1024 * HERE.size, dtype=dtype)
    before = gpu.copied_bytes()
    for _ in range(2):
        backend.reduce_div(on_device, 3.7).wait()
        backend.gather_whole(whole).wait()
    copied = gpu.copied_bytes() - before
    for _ in range(2):
        backend.reduce_div(on_host, 3.7).wait()
    dist.all_gather_into_tensor(gathered, part, group=group)
    same = [bits(on_device) == bits(on_host), bits(whole) == bits(gathered)]
    return same, copied, described(group)


def only_where_asked(library: str, executor: str) -> tuple[bool, bool, int]:
    """On a rank: whether c10d's own calls, and what is no whole packs, are right; what is shared; bytes copied."""
    gpu, group = group_with_memory(library, executor)
    backend = backend_of(group)
    tensor = shared(group, executor, torch.ones(1000))
    before = gpu.copied_bytes()
    dist.all_reduce(tensor, group=group)  # small sums need no window, wherever tensors lie
    dist.broadcast(tensor, 0, group=group)
    backend.reduce_div(tensor[1:5], 1.0).wait()
    everywhere = float(tensor.sum()) == HERE.size * 996 + HERE.size**2 * 4
    known = backend.shares(tensor) and not backend.shares(gpu.put(torch.ones(4)))
    return everywhere, known, gpu.copied_bytes() - before


def comes_and_goes(library: str, executor: str) -> tuple[list[str], float]:
    """On a rank: what is said with two such tensors, after one went on rank 0, and on all; what is left works."""
    _, group = group_with_memory(library, executor)
    backend = backend_of(group)
    first = [shared(group, executor, torch.ones(1000))]
    second = shared(group, executor, torch.ones(1000))
    said = [described(group)]
    if HERE.rank == 0:
        first.clear()
    for _ in range(2):
        gc.collect()
        backend.reclaim_memory(device_for(executor))
        said.append(described(group))
        first.clear()
    backend.reduce_div(second, 2.0).wait()
    return said, float(second.cpu()[-1])


def outlives(library: str, executor: str) -> list[float]:
    """On a rank: a tensor whose group is gone."""
    gpu, group = group_with_memory(library, executor)
    tensor = shared(group, executor, torch.ones(1000))
    backend_of(group).reduce_div(tensor, 1.0).wait()
    gpu.synchronize()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    tensor.fill_(5)
    return tensor.cpu()[[0, -1]].tolist()


def groups_one_after_the_other(library: str, executor: str) -> list[bool]:
    """On a rank: whether each of many groups had such memory, whose tensor goes before its group, or after it."""
    gpu, _ = arrive(library, executor)
    served = []
    for number in range(6):
        group, tensor, tries = gpu.new_group(), None, 400
        while tensor is None and (tries := tries - 1):  # all ranks have it, or none: earlier ones go late
            tensor = backend_of(group).share_memory(LARGE, torch.float32, device_for(executor))
            time.sleep(0.0 if tensor is not None else 0.05)
        served.append(tensor is not None)
        if number % 2:
            tensor = None
        dist.barrier()
        dist.destroy_process_group(group)
        del group
        gc.collect()
        tensor = None
        dist.barrier()
    return served


def disagreeing(library: str, executor: str, how: str) -> tuple[str, bool, bool]:
    """On a rank: rank 1 brings another tensor; what is said, whether that is NaN and the other untouched."""
    gpu, group = group_with_memory(library, executor)
    tensor, other = (shared(group, executor, torch.ones(1000)) for _ in range(2))
    gpu.synchronize()
    dist.barrier()  # who is slower would find the group failed
    brought = tensor
    if HERE.rank == 1:
        brought = {"buffer": other, "window": gpu.put(torch.ones(1000)), "offset": tensor[8:]}[how]
    if how == "offset" and HERE.rank != 1:
        brought = tensor[:992]
    work = backend_of(group).reduce_div(brought, 1.0)
    error = error_of(lambda: work.wait(timedelta(seconds=PATIENCE_S)))
    untouched = tensor if brought is other else other
    return error, is_void(brought), bool((untouched.cpu() == 1).all())


def different_sizes(library: str, executor: str) -> str:
    _, group = group_with_memory(library, executor)
    backend = backend_of(group)
    return error_of(lambda: backend.share_memory(100 + HERE.rank, torch.float32, device_for(executor)))


def elsewhere(library: str, executor: str) -> str:
    """On a rank: rank 1 reduces where the others make memory."""
    gpu, group = group_with_memory(library, executor)
    tensor = gpu.put(torch.ones(4))
    dist.all_reduce(tensor, group=group)
    if HERE.rank == 1:
        return error_of(lambda: dist.all_reduce(tensor, group=group, async_op=True).wait(timedelta(seconds=PATIENCE_S)))
    return error_of(lambda: backend_of(group).share_memory(100, torch.float32, device_for(executor)))


def hang(library: str, executor: str) -> bool:
    """On a rank: a reduction to which rank 1's device does not come."""
    gpu, group = group_with_memory(library, executor)
    tensor = shared(group, executor, torch.ones(1000))
    backend_of(group).reduce_div(tensor, 1.0).wait()
    gpu.synchronize()
    if HERE.rank == 1:
        gpu.hold()
    KEPT.update(gpu=gpu, tensor=tensor, group=group, work=backend_of(group).reduce_div(tensor, 1.0))
    dist.barrier()
    return KEPT["work"].wait()


def end() -> tuple[str, bool, str]:
    """On rank 0, later: what became of it, and of memory asked for after that."""
    error = error_of(lambda: KEPT["work"].wait(timedelta(seconds=PATIENCE_S)))
    KEPT["gpu"].synchronize()
    device = KEPT["tensor"].device
    later = error_of(lambda: backend_of(KEPT["group"]).share_memory(10, torch.float32, device))
    return error, is_void(KEPT["tensor"]), later


def without_memory(library: str, executor: str) -> tuple[bool, str, float]:
    """On a rank: more than a device has, and what a collective does then."""
    gpu, group = group_with_memory(library, executor)
    made = backend_of(group).share_memory(1 << 29, torch.float32, device_for(executor))
    tensor = gpu.put(torch.ones(1000))
    backend_of(group).reduce_div(tensor, 1.0).wait()
    return made is None, described(group), float(tensor.cpu()[0])


def alone(library: str) -> list[bool]:
    """On a rank: nobody to share with; and no memory of the CPU."""
    _, group = group_with_memory(library, "SPIN")
    backend = backend_of(group)
    asked = [device_for("SPIN"), torch.device("cpu")]
    return [backend.share_memory(100, torch.float32, device) is None for device in asked]


@pytest.mark.parametrize(("size", "dtype"), [(2, torch.float32), (3, torch.bfloat16), LONG])
def test_the_bits_are_the_cpus_and_nothing_is_copied(world_of, stand_in, executor, size, dtype):
    for same, copied, text in world_of(size, window_bytes=1 << 20).run(in_place, stand_in, executor, dtype):
        assert same == [True, True]
        assert copied == 0
        bytes_held = (COUNT + 1024 * size) * dtype.itemsize
        assert f"; {bytes_held} bytes of each device, in 2 symmetric buffers, are shared" in text


def test_what_users_call_goes_through_the_window(native_pair, stand_in, executor):
    found = native_pair.run(only_where_asked, stand_in, executor)
    # Of the broadcast, to the window; of what is inside packs, there and back. What a kernel copies is not counted.
    assert found == [(True, True, 4000 + 2 * 16), (True, True, 2 * 16)]


def test_memory_that_no_rank_needs_is_given_back(native_pair, stand_in, executor):
    for said, value in native_pair.run(comes_and_goes, stand_in, executor):
        assert ["; 8000 bytes of" in said[0], "; 8000 bytes of" in said[1], "; 4000 bytes of" in said[2]] == [True] * 3
        assert value == 1.0


def test_a_tensor_outlives_its_group(native_pair, stand_in, executor):
    assert native_pair.run(outlives, stand_in, executor) == [[5.0, 5.0]] * 2


@pytest.mark.parametrize("executor", ["SPIN", pytest.param("STREAM", marks=pytest.mark.long)])
def test_memory_comes_back_with_groups(native_pair, stand_in, executor):
    assert native_pair.run(groups_one_after_the_other, stand_in, executor) == [[True] * 6] * 2


@pytest.mark.parametrize("how", ["buffer", "window", "offset"])
def test_another_place_is_a_mismatch_that_touches_nothing_else(native_pair, stand_in, executor, how):
    for error, void, untouched in native_pair.run(disagreeing, stand_in, executor, how):
        assert "Mismatch: " in error
        assert "(place in shared memory)" in error
        assert " on devices in symmetric buffer 1 at 0" in error
        assert void
        assert untouched


def test_sizes_that_differ_are_named(native_pair, stand_in):
    first, second = native_pair.run(different_sizes, stand_in, "STREAM")
    assert "Mismatch: rank 0 allocates a symmetric buffer of 400 bytes, rank 1 one of 404: " in first
    assert "Mismatch: rank 1 allocates a symmetric buffer of 404 bytes, rank 0 one of 400: " in second


def test_who_does_something_else_is_named(native_pair, stand_in):
    for error in native_pair.run(elsewhere, stand_in, "STREAM"):
        error = re.sub(r" \(pid \d+ on [^)]+\)", "", error)
        assert "rank 0 called what makes or gives back memory that devices share" in error
        assert "rank 1 called all_reduce(SUM, float32 x 4) on devices" in error


def test_a_rank_that_dies_is_named_and_leaves_nan(run_on_fresh_ranks, stand_in, executor):
    world = run_on_fresh_ranks(2, window_bytes=1 << 20)
    world.join()
    assert world.run(hang, stand_in, executor) == [True, True]
    world.kill(1)
    error, void, later = values_of(world.attempt(end, ranks=[0]))[0]
    assert error.startswith("PeerLost: rank 1 (pid ")
    assert later.startswith("PeerLost: rank 1 (pid ")
    assert void


def test_without_memory_on_the_device_windows_serve(native_pair, stand_in, executor):
    for none, text, value in native_pair.run(without_memory, stand_in, executor):
        assert none
        assert "; 0 bytes of each device, in 0 symmetric buffers" in text
        assert "(another could not be allocated: rank 0: CUDA: " in text
        assert value == 2.0


def test_a_world_of_one_and_the_cpu_have_none(world_of, stand_in):
    assert world_of(1).run(alone, stand_in) == [[True, True]]


ACCELERATED = {"window_bytes": 2 << 20}  # no other test's: autograd runs on these ranks' devices for good
SGD = {"lr": 0.1, "momentum": 0.9}
GRADIENT_BYTES = 4 * (12 * 96 + 96 + 96 * 96 + 96 + 96 * 3 + 3)


class Net(nn.Module):
    """Gradients arrive in another order than that of the parameters, so buckets are laid out anew."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.middle, self.first = nn.Linear(96, 3), nn.Linear(96, 96), nn.Linear(12, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x).tanh()).tanh())


class Steps:
    """A training on one device; its first step is over."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, sharded: bool, views: bool) -> None:
        torch.manual_seed(3)
        # without views a bucket of one gradient has no memory of its own: it is reduced through the window
        options: dict[str, Any] = {"bucket_cap_mb": 0.02 if views else 1, "gradient_as_bucket_view": views}
        self.ddp = DistributedDataParallel(Net().to(device), process_group=group, **options)
        parameters = self.ddp.parameters()
        self.optimizer = (
            ZeroOptimizer(parameters, torch.optim.SGD, process_group=group, **SGD)
            if sharded
            else torch.optim.SGD(parameters, **SGD)
        )
        self.device, self.step = device, 0
        self.run()

    def run(self) -> None:
        source = torch.Generator().manual_seed(100 * HERE.rank + self.step)
        self.optimizer.zero_grad()
        self.ddp(torch.randn(4, 12, generator=source).to(self.device)).square().mean().backward()
        self.optimizer.step()
        self.step += 1

    def bits(self) -> bytes:
        return b"".join(bits(parameter.detach()) for parameter in self.ddp.parameters())

    def buckets(self) -> list[dict[str, Any]]:
        return self.ddp.reducer.buckets()

    def layout(self) -> list[list[int]]:
        return [list(bucket["indices"]) for bucket in self.buckets()]


def shared_bytes(group: dist.ProcessGroup) -> int:
    found = re.search(r"; (\d+) bytes of each device", described(group))
    assert found is not None
    return int(found.group(1))


def training(library: str, executor: str, sharded: bool, views: bool) -> dict[str, Any]:
    """On a rank: three steps on the device and on the CPU."""
    gpu, _ = arrive(library, executor)
    gpu.be_accelerator()
    group = gpu.new_group()
    on_host = Steps(group, torch.device("cpu"), sharded, views)
    on_device = Steps(group, device_for(executor), sharded, views)
    said: dict[str, Any] = {"before": shared_bytes(group)}
    layout = on_device.layout()
    on_device.ddp.reducer._rebuild_buckets()
    said["after"], said["rebuilt"] = shared_bytes(group), on_device.layout() != layout
    said["parameters"] = on_device.optimizer._flats[0].padded_bytes if sharded else 0
    said["buckets"] = [(bucket["shared"], bucket["memory_bytes"]) for bucket in on_device.buckets()]
    before = gpu.copied_bytes()
    on_device.run()
    on_device.run()
    said["copied"] = gpu.copied_bytes() - before
    on_host.run()
    on_host.run()
    said["same"] = on_host.bits() == on_device.bits()
    return said


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("sharded", "views", "size"), [(False, False, 2), (False, True, 3), (True, True, 2)])
def test_training_in_it_has_the_cpus_bits(world_of, stand_in, executor, sharded, views, size):
    for said in world_of(size, **ACCELERATED).run(training, stand_in, executor, sharded, views):
        assert said["same"]
        assert said["copied"] == 0
        assert said["rebuilt"]
        assert said["before"] == said["after"] == GRADIENT_BYTES + said["parameters"]
        assert all(shared for shared, _ in said["buckets"])
        assert sum(nbytes for _, nbytes in said["buckets"]) == GRADIENT_BYTES


def joined(library: str, executor: str, views: bool) -> tuple[bool, bool]:
    """On a rank: rank r has r + 1 inputs: whether parameters have the CPU's bits, and .grad stays what it was."""
    gpu, _ = arrive(library, executor)
    gpu.be_accelerator()
    group = gpu.new_group()
    trained = [Steps(group, device, False, views) for device in (torch.device("cpu"), device_for(executor))]
    kept = []
    for steps in trained:
        with steps.ddp.join():
            for _ in range(HERE.rank + 1):
                steps.run()
            before = [bits(p.grad) for p in steps.ddp.parameters()]
        kept.append(before == [bits(p.grad) for p in steps.ddp.parameters()])
    return trained[0].bits() == trained[1].bits(), all(kept)


def copied_by_one(library: str, executor: str) -> tuple[bool, float]:
    """On a rank: rank 0 alone copies its wrapper; whether the copy shares nothing, and a collective after it."""
    gpu, _ = arrive(library, executor)
    gpu.be_accelerator()
    group = gpu.new_group()
    usual = dist.group.WORLD
    dist.distributed_c10d._update_default_pg(group)  # others' wrappers cannot be copied
    steps = Steps(group, device_for(executor), False, True)
    alone = [copy.deepcopy(steps.ddp)] if HERE.rank == 0 else []
    apart = not any(bucket["shared"] for ddp in alone for bucket in ddp.reducer.buckets())
    tensor = gpu.put(torch.ones(10))
    dist.all_reduce(tensor, group=group)
    steps.run()
    dist.distributed_c10d._update_default_pg(usual)
    return apart, float(tensor.cpu()[0])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("views", [False, True])
def test_ranks_may_run_out_of_inputs(world_of, stand_in, executor, views):
    assert world_of(3, **ACCELERATED).run(joined, stand_in, executor, views) == [(True, True)] * 3


def test_one_rank_may_copy_its_wrapper(world_of, stand_in):
    assert world_of(2, **ACCELERATED).run(copied_by_one, stand_in, "SPIN") == [(True, 2.0)] * 2
