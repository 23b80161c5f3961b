"""What a collective costs the host and its device: launches, operations of streams, and bytes copied on the device."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from native import WINDOW_BYTES, arrive
from stand_in import BATCH, COPY, KERNEL, WAIT, WRITE

REPEATED = 4
TURN = {WRITE: 1, WAIT: 1}  # of every call: it notes that its turn has come, and waits for the host's word


def cost_of(library: str, executor: str, elements: int, begin: int, dtype: torch.dtype) -> tuple[dict[str, int], int]:
    """On a rank: calls and copied bytes of an all_reduce of what begins at that element of a tensor's memory."""
    gpu, group = arrive(library, executor)
    tensor = gpu.put(torch.ones(begin + elements, dtype=dtype))[begin:]
    dist.all_reduce(tensor, group=group)  # sets the device up
    gpu.synchronize()
    calls, copied = gpu.calls(), gpu.copied_bytes()
    for _ in range(REPEATED):
        dist.all_reduce(tensor, group=group)
    gpu.synchronize()
    spent = gpu.calls() - calls
    return {name: count // REPEATED for name, count in spent.items()}, (gpu.copied_bytes() - copied) // REPEATED


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long), pytest.param(8, marks=pytest.mark.long)])
def test_small_sums_run_where_the_tensor_is(world_of, stand_in, size):
    world = world_of(size, window_bytes=WINDOW_BYTES)
    packs = [(1024, 0, torch.float32), (64, 4, torch.float32), (1024, 8, torch.bfloat16)]
    for case in packs:  # the plan, and poison
        assert world.run(cost_of, stand_in, "SPIN", *case) == [({KERNEL: 2, **TURN}, 0)] * size
        # Copies to the stage, a sum, poison; a batch of posts and awaits between them, and one behind them.
        one_shot = {KERNEL: 3, BATCH: 2, **TURN}
        assert world.run(cost_of, stand_in, "STREAM", *case) in [
            [(one_shot, 0)] * size,
            [({**one_shot, BATCH: 1}, 0)] * size,
        ]
    # Through the window: a copy there; the copy back is one launch with poison, unless it is inside a pack.
    for elements, begin, copies in ((1023, 0, 1), (1024, 1, 2)):
        bytes_copied = copies * 4 * elements
        found = world.run(cost_of, stand_in, "SPIN", elements, begin, torch.float32)
        assert found == [({KERNEL: 2, COPY: copies, **TURN}, bytes_copied)] * size
    integers = world.run(cost_of, stand_in, "SPIN", 1024, 0, torch.int32)
    assert integers == [({KERNEL: 1, **TURN}, 0)] * size
