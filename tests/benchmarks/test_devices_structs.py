"""benchmarks/devices/structs.py and core.py against the library: sizes, and every field of Work where it looks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from devices.core import SPIN, STREAM, Core, CoreError
from devices.plan import Problem, plans_of
from devices.structs import MAX_BLOCKS, MAX_STEPS, Work, sizes
from ringdp import _native

PAGE = 1 << 20  # an address that nobody looks into: every case is refused before
PLAN = plans_of(Problem(algorithm="one_shot", count=64))[1]
PUSH = plans_of(Problem(algorithm="push", count=64))[1]


@pytest.fixture(scope="module")
def core() -> Core:
    path = _native.load().gpu_report()["library"]
    if path is None:
        pytest.skip("the CUDA part is not built here")
    return Core(path)


def sound(plan=PLAN) -> Work:
    """Work that only lacks a device."""
    work = Work(rank=1, world=2, blocks=1, steps=plan.steps, epoch=PAGE, deadline_ns=1, abort=PAGE, expired=PAGE)
    for rank in range(2):
        for pointers in (work.input, work.output, work.stage, work.pushed, work.flags):
            pointers[rank] = PAGE
    work.pushed_bytes, work.stream_epoch = 1 << 10, 1
    ctypes.memmove(work.step, plan.packed, len(plan.packed))
    return work


def spoil(name: str, value: int | None, rank: int | None = None) -> Callable[[Work], None]:
    """Sets a field, or one rank's."""

    def change(work: Work) -> None:
        if rank is None:
            setattr(work, name, value)
        else:
            getattr(work, name)[rank] = value

    return change


CASES = [
    ("world is 9", spoil("world", 9), PLAN),
    ("rank is 2", spoil("rank", 2), PLAN),
    (f"blocks is {MAX_BLOCKS + 1}", spoil("blocks", MAX_BLOCKS + 1), PLAN),
    (f"steps is {MAX_STEPS + 1}", spoil("steps", MAX_STEPS + 1), PLAN),
    ("deadline_ns is 0", spoil("deadline_ns", 0), PLAN),
    ("epoch is null", spoil("epoch", None), PLAN),
    ("abort is null", spoil("abort", None), PLAN),
    ("expired is null", spoil("expired", None), PLAN),
    ("flags[1] is null", spoil("flags", None, 1), PLAN),
    ("from of rank 1 is null", spoil("input", None, 1), PLAN),
    ("to of rank 1 is null", spoil("output", None, 1), PLAN),
    ("of rank 0 is null", spoil("stage", None, 0), PLAN),
    ("pushed[0] is null", spoil("pushed", None, 0), PUSH),
    ("pushed_bytes is 511", spoil("pushed_bytes", 511), PUSH),
]


def test_every_structure_has_the_size_of_the_extension():
    assert sizes() == _native.load().device_sizes()


@pytest.mark.parametrize(("sentence", "change", "plan"), CASES, ids=[sentence for sentence, *_ in CASES])
def test_every_field_of_work_lies_where_the_library_looks(core, sentence, change, plan):
    work = sound(plan)
    change(work)
    with pytest.raises(CoreError) as refusal:
        core.run(work, plan.element, plan.reduce, SPIN)
    assert sentence in str(refusal.value)


def test_the_launch_number_of_streams_lies_where_the_library_looks(core):
    work = sound()
    work.stream_epoch = 0
    with pytest.raises(CoreError, match="stream_epoch is 0"):
        core.run(work, PLAN.element, PLAN.reduce, STREAM)


def test_a_library_that_does_not_open_is_named():
    with pytest.raises(CoreError, match="/nowhere/gpu.so does not open"):
        Core("/nowhere/gpu.so")
