"""Memory of a host that outlives its ranks: records of two moments, one of them whole at any time, and blocks."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from ringdp.elastic.host_memory import NOT_HERE, HostMemory
from ringdp.elastic.state import _bits

ODD = {
    "whole": torch.arange(12.0).view(3, 4),
    "half": torch.randn(5).bfloat16(),
    "gaps": torch.randn(6, 8).t()[:3],
    "number": torch.tensor(7),
    "nothing": torch.empty(0, 3),
    "plain": [{"lr": 0.1, "betas": (0.9, 0.99), "foreach": None}],
}


@pytest.fixture
def file():
    """As a supervisor has it open."""
    with os.fdopen(os.memfd_create("kept"), "r+b") as file:
        yield file


@pytest.fixture
def memory(file):
    made = HostMemory(f"/proc/{os.getpid()}/fd/{file.fileno()}")
    yield made
    made.close()


def test_a_record_is_as_it_was_and_stays_while_the_next_one_is_written(memory):
    assert memory.moments(3) == [] and memory.home_of(3, 1) == NOT_HERE
    memory.write(3, 1, 5, ODD)
    memory.write(3, 2, 6, {"other": torch.ones(2)})
    assert sorted(memory.moments(3)) == [1, 2] and memory.moments(2) == memory.moments(4) == []
    assert [memory.home_of(3, moment) for moment in range(1, 4)] == [5, 6, NOT_HERE]
    assert _bits(memory.read(3, 1)) == _bits({**ODD, "gaps": ODD["gaps"].clone()})
    memory.write(3, 3, 5, {"third": torch.zeros(1)})
    assert sorted(memory.moments(3)) == [2, 3]
    memory.forget(3)
    assert memory.moments(3) == []


def test_what_is_forgotten_frees_its_memory(file, memory):
    memory.write(0, 1, 0, torch.ones(1 << 18))
    before = os.fstat(file.fileno()).st_blocks
    memory.forget(0)
    assert before >= 2048 and os.fstat(file.fileno()).st_blocks == 0


def test_blocks_of_several_writers(memory):
    values = torch.arange(10.0)
    memory.write_blocks(7, 4, 2, values[8:], 4)  # the last one is shorter
    memory.write_blocks(7, 4, 0, values[:4], 4)
    memory.write_blocks(7, 3, 0, values * 2, 4)
    found, is_there = memory.read_blocks(7, 4, 10, 4)
    assert is_there.tolist() == [True, False, True]
    assert found[:4].equal(values[:4]) and found[8:].equal(values[8:])
    found, is_there = memory.read_blocks(7, 3, 10, 4)
    assert is_there.all() and found.equal(values * 2)
    assert not memory.read_blocks(7, 6, 10, 4)[1].any()  # the moment before has this place


def test_blocks_are_float32_under_any_default_type(memory, request):
    values = torch.arange(5.0)
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    memory.write_blocks(7, 4, 0, values, 4)
    assert memory.read_blocks(7, 4, 5, 4)[0].equal(values)


def write_and_die(path: str, calls: int) -> None:
    """In another process: it is killed after so many writes to the file."""
    memory, put, left = HostMemory(path), HostMemory._put, [calls]

    def dies(self: Any, at: int, data: Any) -> None:
        put(self, at, data)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    HostMemory._put = dies
    memory.write(1, 3, 0, ODD)


@pytest.mark.parametrize("calls", [1, 3, 6])
def test_a_writer_that_dies_leaves_the_record_before(memory, file, calls):
    memory.write(1, 1, 0, {"first": torch.ones(3)})
    memory.write(1, 2, 0, ODD)
    path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    process = multiprocessing.get_context("fork").Process(target=write_and_die, args=(path, calls))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert memory.moments(1) == [2]
    assert _bits(memory.read(1, 2)) == _bits({**ODD, "gaps": ODD["gaps"].clone()})


def test_memory_whose_supervisor_is_gone_is_an_error(tmp_path: Path):
    with pytest.raises(OSError):
        HostMemory(f"/proc/{os.getpid()}/fd/99999")
