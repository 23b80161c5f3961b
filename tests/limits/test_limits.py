"""Sizes at the limits: tensors beyond 2^31 elements, and worlds of many ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, World

BEYOND = (1 << 31) + 5
PERIOD = 1_000_003
RANKS = 2
LIMIT_S = 300.0


def pattern(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """What rank `rank` has, over and over: whole numbers whose sums are exact."""
    return torch.randint(0, 100, (PERIOD,), generator=torch.Generator().manual_seed(rank)).to(dtype)


def stretches(begin: int, count: int) -> Iterator[tuple[int, int, slice]]:
    """(from, to) inside a tensor of `count` elements of an endless pattern from `begin` on, and which of a period."""
    at = 0
    while at < count:
        first = (begin + at) % PERIOD
        size = min(PERIOD - first, count - at)
        yield at, at + size, slice(first, first + size)
        at += size


def filled(count: int, period: torch.Tensor) -> torch.Tensor:
    tensor = torch.empty(count, dtype=period.dtype)
    for begin, end, part in stretches(0, count):
        tensor[begin:end] = period[part]
    return tensor


def wrong_at(tensor: torch.Tensor, period: torch.Tensor, begin: int = 0) -> list[int]:
    """Where the first stretch that differs begins."""
    parts = stretches(begin, tensor.numel())
    return next(([at] for at, end, part in parts if not torch.equal(tensor[at:end], period[part])), [])


def all_reduce(dtype: torch.dtype) -> list[int]:
    tensor = filled(BEYOND, pattern(HERE.rank, dtype))
    dist.all_reduce(tensor)
    return wrong_at(tensor, pattern(0, dtype) + pattern(1, dtype))


def broadcast(dtype: torch.dtype) -> list[int]:
    tensor = filled(BEYOND, pattern(HERE.rank, dtype))
    dist.broadcast(tensor, 1)
    return wrong_at(tensor, pattern(1, dtype))


def all_gather(dtype: torch.dtype) -> list[int]:
    part = BEYOND // RANKS + 1
    whole = torch.empty(RANKS * part, dtype=dtype)
    dist.all_gather_into_tensor(whole, filled(part, pattern(HERE.rank, dtype)))
    return [at for rank, each in enumerate(whole.chunk(RANKS)) for at in wrong_at(each, pattern(rank, dtype))]


def reduce_scatter(dtype: torch.dtype) -> list[int]:
    part = torch.empty(BEYOND // RANKS + 1, dtype=dtype)
    dist.reduce_scatter_tensor(part, filled(RANKS * part.numel(), pattern(HERE.rank, dtype)))
    return wrong_at(part, pattern(0, dtype) + pattern(1, dtype), HERE.rank * part.numel())


def message(dtype: torch.dtype) -> list[int]:
    tensor = filled(BEYOND, pattern(HERE.rank, dtype))
    if HERE.rank == 0:
        dist.send(tensor, 1)
        return []
    dist.recv(tensor, 0)
    return wrong_at(tensor, pattern(0, dtype))


def need_memory(gib: int) -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) >> 20
    if free < gib:
        pytest.skip(f"tensors of more than 2^31 elements need {gib} GiB of memory, {free} are free")


@pytest.mark.long
@pytest.mark.parametrize("call", [all_reduce, broadcast, all_gather, reduce_scatter, message])
def test_of_bytes(make_world, call):
    need_memory(9)
    outcomes = make_world(RANKS, timeout_s=LIMIT_S).attempt(call, torch.uint8, within=LIMIT_S)
    assert [(outcome.error, outcome.value) for outcome in outcomes] == [("", [])] * RANKS


@pytest.mark.long
def test_of_halves(make_world):
    need_memory(12)
    outcomes = make_world(RANKS, timeout_s=LIMIT_S).attempt(all_reduce, torch.float16, within=LIMIT_S)
    assert [(outcome.error, outcome.value) for outcome in outcomes] == [("", [])] * RANKS


def connect() -> None:
    """On a rank: the job's store, whose own time is torch's."""
    HERE.store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False)
    HERE.store.add("connected", 1)


def meet() -> tuple[float, float, float]:
    """On a rank: the sum of all ranks' numbers; when it began, and when it had that."""
    began = time.monotonic()
    dist.init_process_group("ringdp", store=HERE.store, rank=HERE.rank, world_size=HERE.size)
    total = torch.tensor([float(HERE.rank)])
    dist.all_reduce(total)
    return float(total), began, time.monotonic()


@pytest.mark.long
@pytest.mark.parametrize("size", [32, 64])
def test_they_meet(size, transport):
    with World(size, transport=transport) as world:
        world.run(connect)
        met = world.run(meet)
        took = max(at for _, _, at in met) - min(began for _, began, _ in met)
        print(f"{size} ranks over {transport}: group and first sum after {took:.2f} s, once the store was there")
        assert [total for total, _, _ in met] == [size * (size - 1) / 2] * size
        world.leave()
