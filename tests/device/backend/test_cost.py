"""What a collective costs the host and its device: launches, operations of streams, and bytes copied on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from native import WINDOW_BYTES, arrive
from stand_in import BATCH, COPY, KERNEL, WAIT, WRITE, StandIn

REPEATED = 4
TURN = {WRITE: 1, WAIT: 1}  # of every call: it notes that its turn has come, and waits for the host's word
MOST_OF_ARGUMENTS = 4 << 10  # bytes, of one launch
WORLDS = [2, pytest.param(4, marks=pytest.mark.long), pytest.param(8, marks=pytest.mark.long)]


class Cost(NamedTuple):
    """Of one call, on one rank: calls of CUDA, bytes copied on the device, bytes of the arguments of kernels."""

    calls: dict[str, int]
    copied: int
    arguments: int


def cost_of(gpu: StandIn, call: Callable[[], object]) -> Cost:
    """Of later calls: the first sets the device up."""
    call()
    gpu.synchronize()
    calls, copied, arguments = gpu.calls(), gpu.copied_bytes(), gpu.launched_arguments()
    for _ in range(REPEATED):
        call()
    gpu.synchronize()
    spent = {name: count // REPEATED for name, count in (gpu.calls() - calls).items()}
    return Cost(spent, (gpu.copied_bytes() - copied) // REPEATED, (gpu.launched_arguments() - arguments) // REPEATED)


def cost_of_sum(library: str, executor: str, elements: int, begin: int, dtype: torch.dtype) -> tuple[dict, int]:
    """On a rank: calls and copied bytes of an all_reduce of what begins at that element of a tensor's memory."""
    gpu, group = arrive(library, executor)
    tensor = gpu.put(torch.ones(begin + elements, dtype=dtype))[begin:]
    cost = cost_of(gpu, lambda: dist.all_reduce(tensor, group=group))
    assert cost.arguments <= MOST_OF_ARGUMENTS * cost.calls[KERNEL]
    return cost.calls, cost.copied


def cost_of_all_to_all(library: str, executor: str, elements: int) -> dict[str, int]:
    """On a rank: its calls for parts of so many elements."""
    gpu, group = arrive(library, executor)
    tensor = gpu.put(torch.arange(float(elements * dist.get_world_size(group))))
    output = torch.empty_like(tensor)
    return cost_of(gpu, lambda: dist.all_to_all_single(output, tensor, group=group)).calls


def blocks_of_sums(library: str, sizes: list[int]) -> list[int]:
    """On a rank: how many blocks an all_reduce of so many packs launches, with those of poison."""
    gpu, group = arrive(library, "SPIN")
    found = []
    for packs in sizes:
        tensor = gpu.put(torch.ones(4 * packs))
        dist.all_reduce(tensor, group=group)
        gpu.synchronize()
        before = gpu.launched_blocks()
        dist.all_reduce(tensor, group=group)
        gpu.synchronize()
        found.append(gpu.launched_blocks() - before)
    return found


def copied_beside(library: str, elements: int) -> tuple[int, dict[str, int], int, bool]:
    """On a rank: streams that sums in pieces have made; calls of a later one, its copies beside kernels, its bits."""
    gpu, group = arrive(library, "SPIN")
    tensor = gpu.put(torch.arange(elements, dtype=torch.int32))
    streams = gpu.streams()
    dist.all_reduce(tensor[:1000], group=group)
    gpu.synchronize()
    beside = gpu.copies_beside_kernels()
    calls = cost_of(gpu, lambda: dist.all_reduce(tensor, group=group)).calls
    beside = (gpu.copies_beside_kernels() - beside) // (1 + REPEATED)
    times = dist.get_world_size(group) ** (REPEATED + 1)  # as often as it was called
    right = torch.arange(elements, dtype=torch.int32) * times
    right[:1000] *= dist.get_world_size(group)
    return gpu.streams() - streams, calls, beside, bool(torch.equal(tensor.cpu(), right))


@pytest.mark.parametrize("size", WORLDS)
def test_small_sums_run_where_the_tensor_is(world_of, stand_in, size):
    world = world_of(size, window_bytes=WINDOW_BYTES)
    packs = [(1024, 0, torch.float32), (64, 4, torch.float32), (1024, 8, torch.bfloat16)]
    for case in packs:  # the plan, and poison
        assert world.run(cost_of_sum, stand_in, "SPIN", *case) == [({KERNEL: 2, **TURN}, 0)] * size
        # Copies to the stage, a sum, poison; a batch of posts and awaits between them, and one behind them.
        one_shot = {KERNEL: 3, BATCH: 2, **TURN}
        assert world.run(cost_of_sum, stand_in, "STREAM", *case) in [
            [(one_shot, 0)] * size,
            [({**one_shot, BATCH: 1}, 0)] * size,
        ]
    # Through the window: a copy there; the copy back is one launch with poison, unless it is inside a pack.
    for elements, begin, copies in ((1023, 0, 1), (1024, 1, 2)):
        bytes_copied = copies * 4 * elements
        found = world.run(cost_of_sum, stand_in, "SPIN", elements, begin, torch.float32)
        assert found == [({KERNEL: 2, COPY: copies, **TURN}, bytes_copied)] * size
    integers = world.run(cost_of_sum, stand_in, "SPIN", 1024, 0, torch.int32)
    assert integers == [({KERNEL: 1, **TURN}, 0)] * size


@pytest.mark.parametrize("size", WORLDS)
def test_a_row_of_steps_is_one_launch(world_of, stand_in, size):
    world = world_of(size, window_bytes=WINDOW_BYTES)
    spin = {COPY: 1, KERNEL: 2, **TURN}  # the parts are whole packs: together to the window, and back with poison
    assert world.run(cost_of_all_to_all, stand_in, "SPIN", 64) == [spin] * size
    # A copy to every rank, in one launch, between two batches of posts and awaits.
    assert world.run(cost_of_all_to_all, stand_in, "STREAM", 64) == [{**spin, BATCH: 2}] * size
    # Each to the window, and each back by poison, which copies every fourth: the others lie otherwise in a pack.
    apart = {COPY: 2 * size - -(-size // 4), KERNEL: 1 + size, **TURN}
    assert world.run(cost_of_all_to_all, stand_in, "SPIN", 63) == [apart] * size


def test_a_launch_has_a_block_for_512_packs(world_of, stand_in):
    poison = 1
    sizes = [1, 512, 513, 5000]
    assert (
        world_of(2, window_bytes=WINDOW_BYTES).run(blocks_of_sums, stand_in, sizes)
        == [
            [poison + blocks for blocks in (1, 1, 2, 2)]  # 2: half of what a device holds
        ]
        * 2
    )
    limited = world_of(2, window_bytes=WINDOW_BYTES, blocks=1)
    assert limited.run(blocks_of_sums, stand_in, sizes) == [[poison + 1] * len(sizes)] * 2


@pytest.mark.parametrize("size", WORLDS)
def test_pieces_are_copied_on_a_stream_of_their_own(run_on_fresh_ranks, stand_in, size):
    pieces = 5  # of half a window, the last one smaller
    world = run_on_fresh_ranks(size, window_bytes=WINDOW_BYTES)
    world.join()
    calls = {COPY: 2 * pieces, KERNEL: pieces, **TURN}
    found = world.run(copied_beside, stand_in, pieces * WINDOW_BYTES // 2 // 4 - 3)
    assert found == [(2, calls, 2 * pieces, True)] * size
