"""ringdp/planner/walkthrough.py: the worked example against a ring played here."""

import pytest
from ringdp import _native
from ringdp.planner.kind import InputError
from ringdp.planner.walkthrough import ring

pytest.importorskip("torch")


def played(ranks):
    """(after round 1, chunk and sum owned by each rank) of the textbook's schedule: rank r sends chunk (r-s) mod N."""
    held = [[(r + 1) * 10 + c for c in range(ranks)] for r in range(ranks)]
    first = None
    for step in range(ranks - 1):
        moving = [(r, (r - step) % ranks, held[r][(r - step) % ranks]) for r in range(ranks)]
        for sender, chunk, value in moving:
            held[(sender + 1) % ranks][chunk] += value
        first = first or [list(row) for row in held]
    return first, [[(r + 1) % ranks, held[r][(r + 1) % ranks]] for r in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_the_real_ring_does_what_the_textbook_says(ranks):
    answer = ring(ranks)
    assert (answer["after_round_1"], answer["owned_after_reduce_scatter"]) == played(ranks)
    assert answer["result"] == [sum((r + 1) * 10 + c for r in range(ranks)) for c in range(ranks)]
    assert answer["rounds"] == 2 * (ranks - 1) and answer["bytes_per_rank"] == 2 * (ranks - 1) * 4


def test_too_many_ranks_are_sent_elsewhere():
    with pytest.raises(InputError, match="at most 64; ringdp plan comm takes more"):
        ring(65)


def test_an_extension_that_cannot_be_used_is_one_line(monkeypatch):
    def refuse():
        raise ImportError("not built: do this")

    monkeypatch.setattr(_native, "load", refuse)
    with pytest.raises(InputError, match="not built: do this"):
        ring(4)
