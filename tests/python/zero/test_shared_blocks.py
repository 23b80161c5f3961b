"""Units that the ranks of a host gather once, into memory of one rank: who reads what, and for how long."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of, group_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero import shared_blocks
from ringdp.zero.optimizer import ZeroOptimizer
from ringdp.zero.shared_blocks import SharedBlocks, SharedGather
from small_models import fresh
from torch import nn
from unit_models import MODELS
from zero_rig import model, values

CPU = torch.device("cpu")
NBYTES = 1 << 16  # of each rank


def gathered(shared: SharedBlocks, value: int, nbytes: int = NBYTES) -> torch.Tensor:
    """Each rank gives bytes of value + rank."""
    gather = shared.gather(torch.full((nbytes,), value + HERE.rank, dtype=torch.uint8))
    for work in gather.works:
        work.wait()
    return gather.memory()


def expected(value: int, nbytes: int = NBYTES) -> torch.Tensor:
    return torch.cat([torch.full((nbytes,), value + rank, dtype=torch.uint8) for rank in range(HERE.size)])


def place_of(memory: torch.Tensor) -> int:
    """Where it lies in the memory of rank 0, as this process maps it."""
    return memory.data_ptr() - dist.group.WORLD._get_backend(CPU).heap_view(0, 0, 1).data_ptr()


def of_all(value: Any) -> list[Any]:
    found: list[Any] = [None] * HERE.size
    dist.all_gather_object(found, value)
    return found


@on_ranks(3, True)
def test_all_ranks_read_the_same_bytes() -> bool:
    shared = SharedBlocks.of(dist.group.WORLD, CPU)
    memory = gathered(shared, 10)
    right = torch.equal(memory, expected(10))
    dist.barrier()
    if HERE.rank == 1:
        memory[5] = 99
    dist.barrier()
    return right and memory[5].item() == 99 and len(set(of_all(place_of(memory)))) == 1


@on_ranks(3, True)
def test_a_block_is_filled_again_when_the_last_rank_has_returned_it() -> bool:
    """Rank 2 keeps the first gather's memory; each of the next two uses the other block."""
    shared = SharedBlocks.of(dist.group.WORLD, CPU)
    first = gathered(shared, 10)
    at, kept = place_of(first), first if HERE.rank == 2 else None
    del first
    dist.barrier()
    others = []
    for value in (20, 30):
        memory = gathered(shared, value)
        others.append(place_of(memory) if torch.equal(memory, expected(value)) else None)
        del memory
        dist.barrier()
    right = kept is None or torch.equal(kept, expected(10))
    del kept
    dist.barrier()
    again = gathered(shared, 40)
    return right and others[0] == others[1] != at and place_of(again) == at and torch.equal(again, expected(40))


@on_ranks(2, True)
def test_memory_outlives_the_model_of_rank_0_while_another_reads_it() -> bool:
    """Rank 0 drops all and fills new memory of the same size with other bytes."""
    shared = SharedBlocks.of(dist.group.WORLD, CPU)
    memory = gathered(shared, 10)
    if HERE.rank == 0:
        del memory, shared
        gc.collect()
        backend = dist.group.WORLD._get_backend(CPU)
        new = [backend.allocate_tensor(2 * NBYTES, dtype=torch.uint8, device=CPU).fill_(7) for _ in range(8)]
        dist.barrier()
        return len(new) == 8
    dist.barrier()
    return torch.equal(memory, expected(10))


@on_ranks(2, True)
def test_memory_outlives_the_group_while_another_rank_reads_it() -> bool:
    group = dist.new_group(backend="ringdp")
    memory = gathered(SharedBlocks.of(group, CPU), 10)
    if HERE.rank == 0:
        del memory
        gc.collect()
        group.shutdown()
        del group
        shared_blocks._left.clear()  # as when the process ends
        gc.collect()
    dist.barrier()
    return HERE.rank == 0 or torch.equal(memory, expected(10))


@on_ranks(2, True)
def test_a_forked_child_returns_nothing() -> bool:
    shared = SharedBlocks.of(dist.group.WORLD, CPU)
    memory = gathered(shared, 10)
    if HERE.rank == 1:
        child = os.fork()
        if child == 0:
            del memory, shared
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    at = place_of(memory)
    if HERE.rank == 0:
        del memory
    dist.barrier()
    other = gathered(shared, 20)
    return place_of(other) != at and (HERE.rank == 0 or torch.equal(memory, expected(10)))


@on_ranks(2, True)
def test_blocks_of_other_sizes_are_freed() -> bool:
    """Rank 0's memory does not grow with the number of sizes."""
    shared = SharedBlocks.of(dist.group.WORLD, CPU)
    places = set()
    for number in range(1, 400):  # more than there are rows
        memory = gathered(shared, number % 200, 4096 + 64 * number)
        places.add(place_of(memory))
        if not torch.equal(memory, expected(number % 200, 4096 + 64 * number)):
            return False
        del memory
        dist.barrier()
    return len(places) < 8


@pytest.mark.parametrize(("backend", "serves"), [("ringdp", True), ("gloo", False)])
@on_ranks(2, True)
def test_where_memory_is_shared(backend: str, serves: bool) -> bool:
    return (SharedBlocks.of(group_of(backend), CPU) is not None) == serves


@on_ranks(2, [True, True], transport="tcp")
def test_over_tcp_each_rank_gathers_its_own() -> list[bool]:
    ddp = DistributedDataParallel(model(), zero_stage=3)
    whole = values(ddp)
    return [
        SharedBlocks.of(dist.group.WORLD, CPU) is None,
        all(map(torch.equal, whole, (p.detach() for p in model().parameters()))),
    ]


@on_ranks(2, True)
def test_where_rank_0_has_no_room_each_gathers_its_own() -> bool:
    shared = SharedBlocks.of(dist.group.WORLD, CPU)
    shared._allocate = lambda nbytes: (_ for _ in ()).throw(RuntimeError("the heap is full"))
    memory = gathered(shared, 10)
    memory[0] = 90 + HERE.rank
    dist.barrier()
    return memory[0].item() == 90 + HERE.rank and torch.equal(memory[1:], expected(10)[1:])


@pytest.mark.parametrize("fused", [True, False])
@on_ranks(2, "")
def test_steps_of_the_library_are_no_writes_of_the_program(fused: bool) -> str:
    """With overlap_with_ddp a bucket is stepped in the backward pass, here before the unit's last node has run."""
    inner = nn.Sequential(nn.Dropout(0.0), nn.Linear(64, 64))
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), inner, nn.Linear(64, 1)), zero_stage=3)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.1, overlap_with_ddp=True, fused=fused)
    for _ in range(3):
        if said := error_of(ddp(torch.ones(2, 3, 64, requires_grad=True)).sum().backward):
            return said
        optimizer.step()
        optimizer.zero_grad()
    return ""


class Looks(nn.Module):
    """Says where its parameter lies while it runs, after all ranks have come."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64))
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(place_of(self.weight))
        return x @ self.weight


@on_ranks(3, True)
def test_a_forward_and_a_backward_pass_read_what_is_shared() -> bool:
    """The same bytes of rank 0 on all ranks, in every pass; gathered() is each rank's own."""
    ddp = DistributedDataParallel(fresh(lambda: nn.Sequential(Looks(), Looks())), zero_stage=3)
    for _ in range(2):
        ddp(torch.ones(2, 64)).sum().backward()
    in_passes = of_all([layer.seen for layer in ddp.module])
    backend = dist.group.WORLD._get_backend(CPU)
    shared = [not error_of(backend.heap_view, 0, place, 1) for layer in ddp.module for place in layer.seen]
    with ddp.gathered():
        own = place_of(ddp.module[0].weight)
    return (
        all(seen == in_passes[0] for seen in in_passes) and all(shared) and bool(error_of(backend.heap_view, 0, own, 1))
    )


class Writes(nn.Module):
    """A layer that keeps its own parameter small, as some do."""

    def __init__(self, within: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64))
        self.within = within

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.clamp_(max=0.5)
        return x @ self.weight


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_parameter_that_its_forward_writes_is_named(world_of, transport):
    """The shards would not have it, and other ranks would read half of it."""
    said = world_of(2, transport=transport).run(writing)
    assert all("parameter 0.weight was written in a forward" in text for text in said), said


def writing() -> str:
    ddp = DistributedDataParallel(nn.Sequential(Writes(), nn.Linear(64, 1)), zero_stage=3)
    return error_of(ddp, torch.ones(2, 64))


@on_ranks(2, True)
def test_an_embedding_that_renormalizes_is_named() -> bool:
    ddp = DistributedDataParallel(nn.Sequential(nn.Embedding(64, 32, max_norm=0.1)), zero_stage=3)
    return "parameter 0.weight was written" in error_of(ddp, torch.arange(64))


class Fills(nn.Module):
    """Writes its parameter in the way that is provided, in the middle of a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64))
        self.ddp: Any = [None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.ddp[0].gathered(self, writes=True), torch.no_grad():
            self.weight.fill_(2.0 + HERE.rank)
            time.sleep(0.05 * (1 - HERE.rank))  # rank 1 has written before rank 0 reads
        return x @ self.weight


@on_ranks(2, True)
def test_what_is_written_within_a_pass_is_each_rank_s_own() -> bool:
    """All keep the values of rank 0."""
    ddp = DistributedDataParallel(nn.Sequential(Fills(), nn.Linear(64, 1)), zero_stage=3)
    ddp.module[0].ddp[0] = ddp
    ddp(torch.ones(2, 64)).sum().backward()
    return bool((values(ddp)[0] == 2.0).all())


@on_ranks(2, True)
def test_a_unit_whose_gather_failed_is_not_shown() -> bool:
    """Ranks that gather different units are told so. Nobody has said where the unit is, neither now nor later."""
    group = dist.new_group(backend="ringdp")
    make = MODELS["stack"]
    ddp = DistributedDataParallel(make(), zero_stage=3, process_group=group)
    part = ddp.module.first if HERE.rank else ddp.module.blocks[0]
    given = torch.ones(2, part.in_features if HERE.rank else part.norm.normalized_shape[0])
    said = error_of(part, given)
    asked: list[SharedGather] = []
    original, SharedGather.memory = SharedGather.memory, asked.append
    for unit in ddp.sharded_model.units:
        unit.free()
    SharedGather.memory = original
    return "was gathering unit" in said and not asked and "is freed" in error_of(next(part.parameters()).sum)
