"""ringdp/feed/checks/rank_argument.py: DistributedSamplers that were told the wrong rank."""

from __future__ import annotations

from play import checks, epochs_of, judged, numbered, sharded

DATA = numbered(64)


def found(draw, world):
    return [finding for finding in judged(draw, world).findings if finding.check == "wrong rank"]


def test_one_rank_for_all():
    (finding,) = found(lambda rank: epochs_of(sharded(DATA, 0, 4), steps=1), 4)
    assert finding.ranks == (0, 1, 2, 3)
    assert "rank 1 has rank=0" in finding.seen


def test_only_those_that_share_are_named():
    (finding,) = found(lambda rank: epochs_of(sharded(DATA, max(rank, 1), 4), steps=1), 4)
    assert finding.ranks == (0, 1)


def test_too_few_ranks():
    (finding,) = found(lambda rank: epochs_of(sharded(DATA, rank % 2, 2), steps=1), 4)
    assert "for 2 ranks in a job of 4" in finding.seen


def test_ranks_in_another_order_are_fine():
    assert checks(judged(lambda rank: epochs_of(sharded(DATA, 3 - rank, 4)), 4)) == []
