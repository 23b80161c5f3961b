"""A rank given up in mid-pass neither writes into a survivor's tensor, nor takes what is in it since for a result."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE, World
from timers import OWN_CPU, signal_after

COUNT = 1 << 26  # a pass takes tens of milliseconds of a core
STOP_AFTER_S = 0.005
GAVE_UP = r"rank 0 \(pid \d+ on .+\) gave up"
_kept: dict[str, torch.Tensor] = {}


def reduce_while_rank_1_stops() -> tuple[str, bool]:
    """On a rank: the error of an all-reduce in shared memory, and whether rank 1's slice was finished."""
    tensor = _kept["tensor"] = ringdp.empty(COUNT).fill_(1)
    dist.barrier()
    if HERE.rank == 1:
        signal_after(signal.SIGSTOP, STOP_AFTER_S, OWN_CPU)  # a busy machine does not move the moment
    message = ""
    try:
        dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        message = str(error)
    finished = float(tensor[-1]) == 2
    tensor.fill_(-1)
    return message, finished


def broadcast_while_rank_1_stops() -> str:
    """On a rank: the error of a broadcast from rank 0 in shared memory, during which rank 1 stops."""
    tensor = ringdp.empty(COUNT).fill_(HERE.rank)
    dist.barrier()
    if HERE.rank == 1:
        signal_after(signal.SIGSTOP, STOP_AFTER_S, OWN_CPU)  # a busy machine does not move the moment
    try:
        dist.broadcast(tensor, 0)
    except dist.DistBackendError as error:
        tensor.fill_(-1)
        return str(error)
    return ""


def is_untouched() -> bool:
    return bool((_kept["tensor"] == -1).all())


@pytest.fixture
def world() -> Iterator[World]:
    with World(2) as ranks:
        ranks.join(2)
        yield ranks


def test_a_rank_stopped_in_mid_pass_is_shut_out(world):
    world.begin(reduce_while_rank_1_stops)
    [survivor] = world.finish(ranks=[0])
    message, finished = survivor.value
    assert "did not finish in time" in message and "rank 1" in message and "stopped" in message, survivor
    assert not finished, "rank 1 was not in the middle of its pass"
    assert world.stderr(0).count("its memory is private from now on") == 1
    woken = world.signal(1, signal.SIGCONT)
    [stopped] = world.finish(ranks=[1])
    assert stopped.ended > woken, stopped  # after the rest of its piece
    assert re.search(GAVE_UP, stopped.value[0]), stopped
    world.begin(is_untouched, ranks=[0])
    assert world.finish(ranks=[0])[0].value is True


def test_a_late_reader_has_no_result(world):
    world.begin(broadcast_while_rank_1_stops)
    [root] = world.finish(ranks=[0])
    assert "did not finish in time" in root.value and "rank 1" in root.value, root
    world.signal(1, signal.SIGCONT)
    [late] = world.finish(ranks=[1])
    assert re.search(GAVE_UP, late.value), late
