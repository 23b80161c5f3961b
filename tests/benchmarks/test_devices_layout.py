"""benchmarks/devices/layout.py: parts that do not overlap, and a launch whose addresses are everybody's."""

from __future__ import annotations

import pytest
from devices.layout import ALIGNMENT, Launch, Layout
from devices.plan import Problem, plan_of, plans_of
from devices.structs import EPOCH_BYTES, FLAGS_BYTES

PROBLEMS = [Problem(algorithm=a, world=4, count=1000) for a in ("direct", "one_shot", "push", "ring/rank")]


def test_parts_follow_one_another_and_hold_what_every_plan_needs():
    plans = [plan for problem in PROBLEMS for plan in plans_of(problem)]
    layout = Layout.of(4, plans)
    starts = [layout.epoch, layout.flags, layout.pushed, layout.stage, layout.input, layout.output, layout.total]
    rooms = [end - begin for begin, end in zip(starts, starts[1:], strict=False)]
    most = [max(getattr(plan, f"{part}_bytes") for plan in plans) for part in ("pushed", "stage", "input", "output")]
    assert all(start % ALIGNMENT == 0 for start in starts)
    needs = [EPOCH_BYTES, FLAGS_BYTES, 2 * 4 * most[0], *most[1:]]
    assert all(need <= room < need + ALIGNMENT for need, room in zip(needs, rooms, strict=True))
    assert most[0] > 0 and most[1] > 0 and layout.pushed_bytes == most[0]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_launch_names_everybodys_parts(in_place):
    problem = PROBLEMS[2]
    plan = plan_of(problem, 2)
    layout = Layout.of(4, plans_of(problem))
    bases = [0x100000 * (rank + 1) for rank in range(4)]
    launch = Launch(layout, bases, [7000 + r for r in range(4)], abort=64, expired=128, blocks=5, deadline_s=0.25)
    work = launch.at(in_place=in_place).work(plan, divisor=4.0, stream_epoch=9)
    assert (work.rank, work.world, work.blocks, work.steps) == (2, 4, 5, plan.steps)
    assert (work.deadline_ns, work.divisor, work.stream_epoch) == (250_000_000, 4.0, 9)
    assert work.epoch == bases[2] + layout.epoch and (work.abort, work.expired) == (64, 128)
    part = layout.input if in_place else layout.output
    assert list(work.output)[:4] == [base + part for base in bases]
    assert list(work.pushed)[:4] == [base + layout.pushed for base in bases]
    assert list(work.flags)[:4] == [7000, 7001, 7002, 7003] and work.flags[4] is None
    assert bytes(work.step).startswith(plan.packed)
