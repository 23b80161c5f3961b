"""A bucket summed and stepped in one call of the device: the CPU's bits; what ends badly is NaN and has not stepped."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from native import PATIENCE_S, WINDOW_BYTES, arrive, is_void
from ranks import HERE, values_of
from stand_in import backend_of, error_of
from steps import PART, Bucket, OnDevice

SEVERAL_PIECES = 100 * 1024  # of a part: with two ranks or more not all parts fit into the window
KEPT: dict[str, Any] = {}  # on a rank: between two calls of a test


def stepped(library: str, executor: str, part: int, whole: bool) -> list[str]:
    """On a rank: what differs from the CPU after two steps with other gradients, and a collective in between."""
    gpu, group = arrive(library, executor)
    bucket = Bucket(part)
    ours = OnDevice(gpu, bucket, whole=whole)
    for divisor in (float(HERE.size), 3.7):
        ours.step(group, divisor).wait()
        bucket.step(divisor)
        dist.all_reduce(ours.gradients, group=group)
        total = ours.gradients.cpu()
        bucket.gradients = [total] * HERE.size
    return ours.differences()


def disagreeing(library: str, executor: str) -> tuple[str, bool, list[str]]:
    """On a rank: rank 1 does not step. The error; whether parameters are void; which state has changed."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group()
    ours = OnDevice(gpu, Bucket())
    backend = backend_of(group)
    assert backend.why_no_step(ours.gradients.device) == ""
    if HERE.rank == 1:
        work = backend.reduce_scatter_div(gpu.put(ours.bucket.gradients[0][:PART]), ours.gradients, 2.0)
    else:
        work = ours.step(group, 2.0)
    error = error_of(lambda: work.wait(timedelta(seconds=PATIENCE_S)))
    changed = [name for name in ours.differences() if name != "parameters"]
    return error, HERE.rank == 1 or is_void(ours.parameters), changed


def hang(library: str, executor: str) -> bool:
    """On a rank: begins a step to which rank 1's device does not come."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group(60.0)
    ours = OnDevice(gpu, Bucket())
    assert backend_of(group).why_no_step(ours.gradients.device) == ""
    gpu.synchronize()
    if HERE.rank == 1:
        gpu.hold()
    KEPT.update(ours=ours, work=ours.step(group, 2.0), gpu=gpu)
    dist.barrier()
    return KEPT["work"].wait()


def end() -> tuple[str, bool, list[str]]:
    """On rank 0, once rank 1 is dead: the error, whether parameters are void, which state has changed."""
    error = error_of(lambda: KEPT["work"].wait(timedelta(seconds=PATIENCE_S)))
    KEPT["gpu"].synchronize()
    changed = [name for name in KEPT["ours"].differences() if name != "parameters"]
    return error, is_void(KEPT["ours"].parameters), changed


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_bits_are_the_cpus(world_of, stand_in, executor, size, whole):
    world = world_of(size, window_bytes=WINDOW_BYTES)
    assert world.run(stepped, stand_in, executor, PART, whole) == [[]] * size


def test_what_windows_do_not_hold_goes_in_pieces(world_of, stand_in, executor):
    world = world_of(3, window_bytes=WINDOW_BYTES)
    assert world.run(stepped, stand_in, executor, SEVERAL_PIECES, True) == [[]] * 3


def test_nothing_is_stepped_where_ranks_disagree(native_pair, stand_in, executor):
    for error, void, changed in native_pair.run(disagreeing, stand_in, executor):
        assert "Mismatch: " in error and "(step)" in error and "on devices with a step" in error
        assert void
        assert changed == []


def test_a_rank_that_dies_is_named_and_nothing_is_stepped(run_on_fresh_ranks, stand_in, executor):
    world = run_on_fresh_ranks(2, window_bytes=WINDOW_BYTES)
    world.join()
    assert world.run(hang, stand_in, executor) == [True, True]
    world.kill(1)
    error, void, changed = values_of(world.attempt(end, ranks=[0]))[0]
    assert error.startswith("PeerLost: rank 1 (pid ")
    assert void
    assert changed == []
