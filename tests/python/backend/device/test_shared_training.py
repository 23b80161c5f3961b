"""Training whose buckets, and ZeRO's parameters, lie in memory that devices share: the CPU's bits, without copies."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from native import EXECUTORS, arrive, bits, described, device_for
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.optimizer import ZeroOptimizer
from torch import nn

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
    said["parameters"] = on_device.optimizer._flats[0].held_bytes if sharded else 0
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
