"""ringdp/doctor/checks/groups.py: the order of collectives."""

from __future__ import annotations

from ringdp.doctor.checks.groups import check
from synthetic import evidence

A, B, C = ("all_reduce", "0,1,2,3"), ("all_to_all", "0,1"), ("all_to_all", "2,3")


def with_calls(*by_rank):
    def rows(rank):
        calls = [dict(zip(("op", "group", "name"), (*call, "0"), strict=False)) for call in by_rank[rank]]
        return {"call": [{**call, "count": 8, "step": step} for step, call in enumerate(calls)]}

    return evidence(len(by_rank), more=rows)


def test_two_groups_in_opposite_orders():
    (finding,) = check(with_calls([A, A, B], [A, B, A], [A, A, C], [A, A, C]))
    assert (finding.check, finding.ranks, finding.numbers) == ("group order", (0, 1), {"place": 2, "step": 2})
    assert "all_reduce of 8 elements on group 0 (ranks 0,1,2,3) on rank 0 and all_to_all" in finding.seen


def test_the_same_order_is_fine_whatever_other_groups_do():
    assert list(check(with_calls([A, B, A], [A, B, A], [A, A, C], [A, A, C]))) == []
    assert list(check(with_calls([C[:1] + ("0",), A], [A]))) == []


def test_different_calls_on_one_group():
    (finding,) = check(with_calls([A, ("broadcast", "0,1,2,3")], [A, A]))
    assert finding.check == "different calls"


def test_a_rank_that_was_stopped_earlier_is_fine():
    assert list(check(with_calls([A, A, A], [A, A]))) == []


def test_groups_of_the_same_ranks_are_told_apart():
    one, two = (*A, "1"), (*A, "2")
    (finding,) = check(with_calls([one, two], [two, one]))
    assert finding.check == "group order" and "group 2 (ranks 0,1,2,3) on rank 1" in finding.seen
