"""An epoch in the order of the one before: a shuffle that set_epoch() was never told to renew."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ringdp.attach.finding import Finding
from ringdp.feed.draws import Draws, Epoch, Feed

_ENOUGH = 8  # samples: fewer may come in the same order twice by chance


def check(feed: Feed) -> Iterator[Finding]:
    """The first epoch that repeats the order before it on some rank. Data drawn in rising order is not shuffled."""
    if feed.by == "content" or feed.fact("shuffle") == {False}:
        return
    for before, epoch in pairwise(feed.epochs):
        ranks = tuple(rank for rank in epoch.draws if rank in before.draws and _is_stale(feed, rank, before, epoch))
        if ranks:
            yield _stale(feed, epoch, ranks)
            return


def _is_stale(feed: Feed, rank: int, before: Epoch, epoch: Epoch) -> bool:
    old, new = before.draws[rank], epoch.draws[rank]
    length = min(len(old.order), len(new.order))
    if not length or old.order[:length] != new.order[:length] or _may_be_a_look(old, new):
        return False
    untold = feed.facts[rank]["shuffle"] and old.sampler_epoch == new.sampler_epoch
    return bool(untold) or (length >= _ENOUGH and not _rises(new))


def _may_be_a_look(old: Draws, new: Draws) -> bool:
    """Into the loader, for statistics or to warm up: set_epoch() is not called for that."""
    looked = not old.ended and len(old.batches) < max(2, len(new.batches))
    return looked or not all(draws.trained or draws.ended for draws in (old, new))


def _rises(draws: Draws) -> bool:
    return all(one <= other for one, other in pairwise(draws.order))


def _stale(feed: Feed, epoch: Epoch, ranks: tuple[int, ...]) -> Finding:
    at = epoch.draws[ranks[0]].sampler_epoch
    told = f" (the sampler is still at epoch {at})" if at is not None else ""
    seen = f"{feed.name}, epoch {epoch.number + 1}: the samples come in the order of epoch {epoch.number}{told}"
    why = "without a new shuffle every epoch has the same batches, on every rank the same share: that costs accuracy"
    fix = "sampler.set_epoch(epoch) at the beginning of each epoch, before the loader is iterated"
    if at is None:
        fix = "seed the shuffle's generator once, not at each epoch"
    return Finding("stale epoch", seen, why, fix, ranks, numbers={"epoch": epoch.number + 1})
