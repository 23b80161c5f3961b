"""Every collective against a serial oracle, bit for bit: dtype x op x size x ranks x transport x plan."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, World, values_of

sys.path.insert(0, str(Path(__file__).resolve().parent))
from oracle import FLOATS, INTEGERS, fold, ops_of, same_bits, small_integers, values

# 0, 1, fewer than ranks, not divisible, more than a segment, a slot and a link hold
SIZES = [0, 1, 2, 5, 1000, 4099]
LARGE = 300_001
DTYPES = [*FLOATS, *INTEGERS]
WORLDS = {
    "shm 1": (1, {"transport": "shm"}),
    "shm 2": (2, {}),
    "shm 3": (3, {"transport": "shm"}),
    "shm 4": (4, {"transport": "shm"}),
    "tcp 2": (2, {"transport": "tcp"}),
    "tcp 3": (3, {"transport": "tcp"}),
    "direct 3": (3, {"algorithm": "direct"}),
    "ring 3": (3, {"algorithm": "ring"}),
    "ring 4 tcp": (4, {"algorithm": "ring", "transport": "tcp"}),
}


def every_rank(label: str, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [values(label, rank, count, dtype) for rank in range(HERE.size)]


def all_reduces(dtype: torch.dtype, sizes: list[int]) -> list[str]:
    """On a rank: what differs from the oracle."""
    wrong = []
    for op in ops_of(dtype):
        for count in sizes:
            inputs = every_rank(op, count, dtype)
            mine = inputs[HERE.rank].clone()
            dist.all_reduce(mine, op=getattr(dist.ReduceOp, op))
            if not same_bits(mine, fold(inputs, op)):
                wrong.append(f"{op} {dtype} x {count}")
    return wrong


def reduce_scatters(dtype: torch.dtype, sizes: list[int]) -> list[str]:
    """On a rank: list and flat form; what differs from the oracle."""
    wrong = []
    for op in ops_of(dtype):
        for count in sizes:
            inputs = every_rank(op, count * HERE.size, dtype)
            want = fold(inputs, op)[HERE.rank * count : (HERE.rank + 1) * count]
            mine = inputs[HERE.rank].clone()
            listed, flat = torch.empty(count, dtype=dtype), torch.empty(count, dtype=dtype)
            dist.reduce_scatter(listed, list(mine.tensor_split(HERE.size)), op=getattr(dist.ReduceOp, op))
            dist.reduce_scatter_tensor(flat, mine, op=getattr(dist.ReduceOp, op))
            if not same_bits(listed, want) or not same_bits(flat, want):
                wrong.append(f"{op} {dtype} x {count}")
            if not same_bits(mine, inputs[HERE.rank]):
                wrong.append(f"{op} {dtype} x {count}: the input was written to")
    return wrong


def moves(dtype: torch.dtype, sizes: list[int]) -> list[str]:
    """On a rank: broadcast from every root, all_gather in both forms; what differs."""
    wrong = []
    for count in sizes:
        inputs = every_rank("move", count, dtype)
        for root in range(HERE.size):
            mine = inputs[HERE.rank].clone()
            dist.broadcast(mine, root)
            if not same_bits(mine, inputs[root]):
                wrong.append(f"broadcast from {root}: {dtype} x {count}")
        listed = [torch.empty(count, dtype=dtype) for _ in inputs]
        dist.all_gather(listed, inputs[HERE.rank])
        flat = torch.empty(count * HERE.size, dtype=dtype)
        dist.all_gather_into_tensor(flat, inputs[HERE.rank])
        if not all(same_bits(a, b) for a, b in zip(listed, inputs, strict=True)):
            wrong.append(f"all_gather: {dtype} x {count}")
        if not same_bits(flat, torch.cat(inputs)):
            wrong.append(f"all_gather_into_tensor: {dtype} x {count}")
    return wrong


def objects() -> tuple[list[object], list[object]]:
    """On a rank: all_gather_object of objects of different sizes; broadcast_object_list from the last rank."""
    gathered: list[object] = [None] * HERE.size
    dist.all_gather_object(gathered, {"rank": HERE.rank, "text": "x" * (1000 * HERE.rank)})
    sent = [HERE.rank, "from", HERE.rank] if HERE.rank == HERE.size - 1 else [None, None, None]
    dist.broadcast_object_list(sent, src=HERE.size - 1)
    return gathered, sent


def barrier_order() -> tuple[float, float]:
    """On a rank: when it came to a barrier and when it left it."""
    time.sleep(0.1 * HERE.rank)
    came = time.monotonic()
    dist.barrier()
    return came, time.monotonic()


@pytest.fixture(params=WORLDS)
def world(request, world_of) -> World:
    size, settings = WORLDS[request.param]
    return world_of(size, **settings)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("calls", [all_reduces, reduce_scatters, moves])
def test_bits_of_the_serial_oracle(world, calls, dtype):
    assert world.run(calls, dtype, SIZES) == [[]] * world.size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("calls", [all_reduces, reduce_scatters, moves])
def test_bits_of_large_tensors(world, calls, dtype):
    assert world.run(calls, dtype, [LARGE]) == [[]] * world.size


def test_objects(world):
    wanted = [{"rank": rank, "text": "x" * (1000 * rank)} for rank in range(world.size)]
    last = world.size - 1
    assert world.run(objects) == [(wanted, [last, "from", last])] * world.size


def test_nobody_leaves_a_barrier_before_the_last_came(world):
    times = world.run(barrier_order)
    assert min(left for _, left in times) >= max(came for came, _ in times)


def rotated_sums(sizes: list[int]) -> list[str]:
    """On a rank: sums that are exact in any order, so that the textbook ring's bits are known too."""
    wrong = []
    for dtype in DTYPES:
        for count in sizes:
            inputs = [small_integers("rotated", rank, count, dtype) for rank in range(HERE.size)]
            mine = inputs[HERE.rank].clone()
            dist.all_reduce(mine)
            if not same_bits(mine, fold(inputs, "SUM")):
                wrong.append(f"{dtype} x {count}")
    return wrong


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("order", ["rank", "rotated"])
def test_the_ring_in_both_orders(run_on_fresh_ranks, size, transport, order):
    world = run_on_fresh_ranks(size, transport=transport, algorithm="ring", order=order)
    world.join()
    assert world.run(rotated_sums, [*SIZES, 100_003]) == [[]] * size


@pytest.mark.parametrize("order", ["rank", "rotated"])
def test_the_ring_of_eight(run_on_fresh_ranks, order):
    world = run_on_fresh_ranks(8, algorithm="ring", order=order)
    world.join()
    assert world.run(rotated_sums, [0, 1, 7, 1000]) == [[]] * 8


def largest(count: int) -> list[str]:
    """On a rank: more than 2^31 elements; ends, middle and both sides of 2^31 are looked at."""
    tensor = torch.full((count,), HERE.rank + 1, dtype=torch.uint8)
    tensor[-1] = tensor[2**31] = 10 * (HERE.rank + 1)
    dist.all_reduce(tensor)
    places = {0: 3, count // 2: 3, 2**31 - 1: 3, 2**31: 30, 2**31 + 1: 3, count - 2: 3, count - 1: 30}
    wrong = [f"[{at}] is {tensor[at]}" for at, wanted in places.items() if int(tensor[at]) != wanted]
    tensor[-1] = tensor[2**31] = 3
    threes = torch.full((1 << 24,), 3, dtype=torch.uint8)
    return wrong + ["elsewhere" for part in tensor.split(len(threes)) if not torch.equal(part, threes[: len(part)])]


def test_more_than_two_gigabytes(pair):
    lines = Path("/proc/meminfo").read_text().splitlines()
    if next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) < 8 << 20:
        pytest.skip("less than 8 GiB of memory is free")
    assert values_of(pair.attempt(largest, 2**31 + 17, within=240)) == [[], []]
