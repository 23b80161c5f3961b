"""The schedule of gathers, on units that only note what is done to them."""

from __future__ import annotations

from typing import Any

from ringdp.zero.gathers import Gathered, PassGathers, Schedule


class Noted:
    """What a schedule wants of a unit."""

    def __init__(self, number: int, seen: list[str]) -> None:
        self.number, self.name, self.nbytes = number, "abcdef"[number], 100
        self.holders = self.pins = 0
        self.has_memory, self._seen = False, seen

    def start(self) -> None:
        assert not self.has_memory
        self.has_memory = True
        self._seen.append(f"{self.name}?")

    def wait(self) -> None:
        assert self.has_memory
        self._seen.append(f"{self.name}!")

    def free(self) -> None:
        if self.has_memory:
            self.has_memory = False
            self._seen.append(f"{self.name}-")


def rig(count: int, prefetch: bool = True) -> tuple[Any, list[Noted], list[str]]:
    seen: list[str] = []
    units = [Noted(n, seen) for n in range(count)]
    return Schedule(units, 4, prefetch), units, seen


def use(schedule: Schedule, *units: Noted) -> None:
    for unit in units:
        schedule.acquire(unit)
        schedule.release(unit)


def test_the_second_pass_knows_what_comes_next():
    schedule, (a, b, c), seen = rig(3)
    schedule.begin(backward=False)
    use(schedule, a, b, c)
    assert seen == ["a?", "a!", "a-", "b?", "b!", "b-", "c?", "c!", "c-"]
    seen.clear()
    schedule.begin(backward=False)
    use(schedule, a, b, c)
    assert seen == ["a?", "a!", "b?", "a-", "b!", "c?", "b-", "c!", "c-"]


def test_the_first_backward_pass_expects_the_forward_pass_reversed():
    schedule, (a, b), seen = rig(2)
    schedule.begin(backward=False)
    use(schedule, a, b)
    seen.clear()
    schedule.begin(backward=True)
    use(schedule, b, a)
    assert seen == ["b?", "b!", "a?", "b-", "a!", "a-"]


def test_without_prefetch_nothing_comes_ahead():
    schedule, (a, b), seen = rig(2, prefetch=False)
    for _ in range(2):
        seen.clear()
        schedule.begin(backward=False)
        use(schedule, a, b)
        assert seen == ["a?", "a!", "a-", "b?", "b!", "b-"]


def test_what_came_in_vain_is_freed():
    schedule, (a, b, c), seen = rig(3)
    schedule.begin(backward=False)
    use(schedule, a, b, c)
    schedule.begin(backward=False)
    seen.clear()
    use(schedule, a, c)  # b is skipped
    assert seen == ["a?", "a!", "b?", "a-", "b-", "c?", "c!", "c-"]
    schedule.begin(backward=False)
    use(schedule, a)
    assert c.has_memory
    schedule.end()
    assert not c.has_memory


def test_a_unit_that_is_there_is_not_gathered_again():
    schedule, (a, b), seen = rig(2)
    schedule.begin(backward=False)
    schedule.acquire(a)
    use(schedule, a, b, a)
    assert a.has_memory and seen == ["a?", "a!", "b?", "b!", "b-"]
    schedule.release(a)
    assert not a.has_memory


def test_a_unit_that_lingers_is_kept_for_whoever_needs_it_next():
    schedule, (a, b), seen = rig(2)
    schedule.begin(backward=True)
    schedule.acquire(a)
    schedule.release(a, linger=True)
    schedule.acquire(a)
    schedule.release(a)
    assert seen == ["a?", "a!", "a-"]
    schedule.acquire(a)
    schedule.release(a, linger=True)
    use(schedule, b)
    assert seen[3:] == ["a?", "a!", "a-", "b?", "b!", "b-"]
    schedule.acquire(a)
    schedule.release(a, linger=True)
    schedule.end()
    assert not a.has_memory


def test_a_pass_that_was_broken_off_is_cleared_away():
    schedule, (a, b), _ = rig(2)
    schedule.pin(b)
    schedule.begin(backward=False)
    schedule.acquire(a)
    schedule.acquire(b)
    schedule.begin(backward=False)
    assert not a.has_memory and a.holders == 0
    assert b.has_memory and b.holders == 1
    schedule.unpin(b)
    assert not b.has_memory


def test_pins_are_no_part_of_a_pass():
    schedule, (a, b), _ = rig(2)
    schedule.begin(backward=False)
    use(schedule, a)
    schedule.end()
    schedule.pin(b)
    schedule.unpin(b)
    assert schedule.latest().forward.order == ("a",)
    schedule.begin(backward=False)
    assert schedule.running_order() == []


def test_facts_are_those_of_the_latest_passes():
    schedule, (a, b), _ = rig(2)
    for _ in range(2):
        schedule.begin(backward=False)
        use(schedule, a, b)
        assert schedule.running_order() == [0, 1]
        schedule.begin(backward=True)
        use(schedule, b, a)
        schedule.end()
    facts = schedule.latest()
    assert (facts.forward.order, facts.backward.order) == (("a", "b"), ("b", "a"))
    assert facts.forward.ahead == 1 and facts.forward.bytes == 150  # three quarters come from others
    assert facts.exposed == facts.forward.exposed + facts.backward.exposed > 0


def test_facts_can_be_printed():
    text = str(Gathered(forward=PassGathers(("a", "b"), 1, 1500, 0.002)))
    assert "2 gathers, 1 ahead of use, 1,500 bytes received, 2.00 ms exposed: a, b" in text
    assert "backward: 0 gathers" in text
