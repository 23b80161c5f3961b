"""When fragments leave and arrive: against the rule by hand, and what is printed."""

from __future__ import annotations

import itertools

import pytest
import torch
from ringdp.local.fragments import cut
from ringdp.local.schedule import Event, Schedule


def by_hand(every: int, fragments: int, delay: int, start: int, last: int) -> list[tuple[int, str, int]]:
    """Round by round: fragment k leaves after (k + 1) / fragments of the round's steps, rounded down."""
    found = []
    for begin in range(start, last, every):
        for fragment in range(fragments):
            left = begin + (fragment + 1) * every // fragments
            found += [(left, "leaves", fragment), (left + delay, "arrives", fragment)]
    return sorted(event for event in found if event[0] <= last)


def test_events_are_those_of_the_rule():
    for every, fragments, delay, start in itertools.product((1, 2, 5, 12), (1, 2, 3, 5), (0, 1, 4, 11), (0, 3)):
        if fragments <= every and delay < every:
            schedule = Schedule(every, fragments, delay, start)
            assert sorted(schedule.events(1, 40)) == by_hand(every, fragments, delay, start, 40)


def test_what_leaves_comes_before_what_arrives():
    assert list(Schedule(2).events(1, 2)) == [Event(2, "leaves", 0), Event(2, "arrives", 0)]


def test_halfway_lies_between_and_what_is_on_the_way_has_left():
    for every, fragments, delay in itertools.product((4, 6), (1, 2, 3), (0, 1, 2, 3)):
        schedule = Schedule(every, fragments, delay, start=2)
        on_the_way: dict[int, int] = {}
        for step in range(30):
            if (left := schedule.leaving(step)) is not None:
                on_the_way[left] = step
            if (half := schedule.halfway(step)) is not None:
                assert on_the_way[half] <= step <= on_the_way[half] + delay
                assert abs(2 * (step - on_the_way[half]) - delay) <= 1
            if (arrived := schedule.arriving(step)) is not None:
                assert on_the_way.pop(arrived) == step - delay
            assert schedule.on_the_way(step) == on_the_way


def test_rounds_end_when_all_have_left():
    schedule = Schedule(6, 3, 1, start=2)
    assert [step for step in range(16) if schedule.ends_round(step)] == [1, 2, 8, 14]
    assert [step for step in range(1, 5) if schedule.is_synchronous(step)] == [1, 2]


def test_it_is_printed():
    assert str(Schedule(6, 2, 1, start=3)).splitlines() == [
        "steps 1 to 3: synchronous",
        "fragment 0: leaves after steps 6, 12, 18, ...; arrives 1 step later",
        "fragment 1: leaves after steps 9, 15, 21, ...; arrives 1 step later",
    ]
    assert str(Schedule(5)) == "fragment 0: leaves after steps 5, 10, 15, ...; arrives at once"


def test_fragments_are_consecutive_and_of_about_one_size():
    sizes = [7, 0, 12, 5, 40, 3, 3, 20, 0]
    names = [f"p{number}" for number in range(len(sizes))]
    for fragments in (1, 2, 3):
        found = cut(names, [torch.empty(size) for size in sizes], fragments)
        assert [number for fragment in found for number in fragment.numbers] == list(range(len(sizes)))
        assert [name for fragment in found for name in fragment.names] == names
        # A border is at most half a parameter away from where it would be in elements.
        ends = list(itertools.accumulate(fragment.elements for fragment in found))
        assert all(abs(end - (k + 1) * sum(sizes) / fragments) <= max(sizes) / 2 for k, end in enumerate(ends))
    with pytest.raises(ValueError, match="fragments=8: fragment 2 would have no elements"):
        cut(names, [torch.empty(size) for size in sizes], 8)


def test_a_fragment_is_flat_and_views_of_it_are_the_parameters():
    parameters = [torch.randn(2, 3), torch.randn(()), torch.randn(0, 4), torch.randn(4, 2).t()]
    (fragment,) = cut(list("abcd"), parameters, 1)
    flat = fragment.flat(parameters)
    assert len(flat) == fragment.elements == 15
    assert all(torch.equal(view, parameters[number]) for number, _, view in fragment.views(flat))
