"""Arrivals at a meeting: who goes on is waited for, who does not is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from ringdp.elastic import arrivals
from ringdp.elastic.arrivals import Arrivals

LIMIT_S, MEMBERS = 1.0, (0, 4, 7)


class Clock:
    """In the place of time: what others do happens while one sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(arrivals, "time", made)
    return made


@pytest.fixture
def members() -> list[Arrivals]:
    """Of one world."""
    store = dist.HashStore()
    return [Arrivals(store, member, MEMBERS) for member in MEMBERS]


def come(member: Arrivals, late: Callable[[Sequence[int]], object] = pytest.fail) -> None:
    member.come(lambda: None, LIMIT_S, late)


def test_nobody_passes_a_meeting_before_all_are_there(members):
    passed: list[tuple[int, int]] = []  # meetings of the one that passes, and of the one that has come to the fewest

    def meet_twice(member: Arrivals) -> None:
        for meeting in (1, 2):
            come(member)
            passed.append((meeting, min(other._meetings for other in members)))

    with ThreadPoolExecutor(len(members)) as pool:
        list(pool.map(meet_twice, members))
    assert len(passed) == 6 and all(fewest >= meeting for meeting, fewest in passed)


def test_who_makes_steps_is_waited_for_however_long_it_takes(clock, members):
    one, *others = members

    def make_steps() -> None:
        for other in others:
            other.tell_step()
            if clock.now > 20 * LIMIT_S:
                other._meetings = 1
                other._tell()

    clock.meanwhile = make_steps
    come(one)
    assert clock.now > 20 * LIMIT_S


def test_who_makes_no_step_is_named_again_and_again_until_it_comes(clock, members):
    one, hangs, steps = members
    late: list[Sequence[int]] = []

    def go_on() -> None:
        steps.tell_step()
        for other in (hangs, steps) if len(late) == 2 else ():
            other._meetings = 1
            other._tell()

    clock.meanwhile = go_on
    come(one, late.append)
    assert late == [[4], [4]] and 2 * LIMIT_S < clock.now < 3 * LIMIT_S  # of a clock that nothing delays


def test_the_end_of_the_world_ends_the_wait(clock, members):
    def look() -> None:
        if clock.now > 3 * LIMIT_S:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        members[0].come(look, LIMIT_S, lambda late: None)
