"""What a loader with a ringdp.elastic.Leaves promises of each epoch, and whether its ranks together have kept it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ringdp.text.units import counted, names
from ringdp.tools.attach.finding import Finding
from ringdp.tools.feed.checks import check_duplicates, check_stale
from ringdp.tools.feed.draws import Epoch, Feed
from ringdp.tools.feed.leaf_steps import minority, settings_finding
from ringdp.tools.feed.naming import Key
from ringdp.tools.feed.recorder import SETTINGS

_MOST = 1 << 22  # samples whose order is made to compare with; it takes some hundred bytes each


def settings_of(feed: Feed) -> dict[str, Any] | None:
    """Of its Leaves, if all ranks have one with the same settings."""
    given = [facts.get("leaves") for facts in feed.facts.values()]
    if not all(given) or any(_settings(one) != _settings(given[0]) for one in given):
        return None
    return _settings(given[0])


def _settings(leaves: dict[str, Any]) -> dict[str, Any]:
    return {name: leaves[name] for name in SETTINGS}


def drawers(feed: Feed) -> list[int]:
    """The ranks that have to draw; with fewer micro-batches than ranks the last ones have none."""
    settings = settings_of(feed)
    return list(range(feed.world if settings is None else min(feed.world, settings["micro_batches"])))


def promised(feed: Feed, epoch: Epoch) -> Counter[Key] | None:
    """How often each sample is drawn in the whole epoch, over all ranks; None where that is not known."""
    settings = settings_of(feed)
    at = {draws.sampler_epoch for draws in epoch.draws.values()}
    if settings is None or len(at) != 1 or feed.by != "index" or (number := at.pop()) is None:
        return None
    if settings["dataset_len"] > _MOST:
        return None
    return _samples(number, **settings)


def ended(feed: Feed, epoch: Epoch) -> bool:
    """Whether every rank that has to draw came to the end."""
    return all(rank in epoch.draws and epoch.draws[rank].ended for rank in drawers(feed))


@lru_cache(maxsize=8)
def _samples(epoch: int, **settings: Any) -> Counter[Key]:
    from ringdp.elastic.leaves import Leaves  # loads the extension, which other audits do without

    return Counter(Leaves(**settings, rank=0, ranks=1).samples(epoch))


def check_leaves(feed: Feed) -> Iterator[Finding]:
    """Settings first, as what follows from different ones is no fault of its own."""
    given = {rank: facts["leaves"] for rank, facts in feed.facts.items() if facts.get("leaves")}
    if finding := settings_finding({rank: _settings(leaves) for rank, leaves in given.items()}):
        yield finding
        return
    settings = next(iter(given.values()))
    yield from _length(feed, settings["dataset_len"])
    if settings["dataset_len"] > _MOST and settings["remainder"] == "drop":  # each sample once, then
        yield from check_duplicates(feed)
    for epoch in feed.epochs:
        found = [*_apart(feed, epoch), *_kept(feed, epoch)]
        if found:
            yield from found
            return
    yield from check_stale(feed)


def _length(feed: Feed, length: int) -> Iterator[Finding]:
    wrong = {rank: facts["length"] for rank, facts in feed.facts.items() if facts["length"] not in (None, length)}
    if wrong:
        there = counted(next(iter(wrong.values())), "sample")
        seen = f"{feed.name}: Leaves has dataset_len={length}, the data set of {names(wrong)} has {there}"
        why = "samples beyond it are never drawn"
        yield Finding("leaves differ", seen, why, "Leaves(len(dataset), ...)", tuple(wrong), numbers={"length": length})


def _apart(feed: Feed, epoch: Epoch) -> Iterator[Finding]:
    at = {rank: draws.sampler_epoch for rank, draws in epoch.draws.items()}
    if len(set(at.values())) > 1:
        given = ", ".join(f"rank {rank} at {number}" for rank, number in at.items())
        seen = f"{feed.name}, epoch {epoch.number + 1}: the ranks' Leaves are at different epochs ({given})"
        why = "ranks then draw from different orders: some samples are drawn twice and others not at all"
        fix = "leaves.set_epoch(epoch) on every rank before the loader is iterated"
        yield Finding("stale epoch", seen, why, fix, minority(at), numbers={"epoch": epoch.number + 1})


_ONCE = (
    "DataLoader(dataset, batch_sampler=Leaves(len(dataset), ...)) on every rank, with the rank and the number of ranks "
    "that it takes from the process group"
)


def _kept(feed: Feed, epoch: Epoch) -> Iterator[Finding]:
    want = promised(feed, epoch)
    if want is None:
        return
    name, number = f"{feed.name}, epoch {epoch.number + 1}", epoch.number + 1
    if more := epoch.counts - want:
        ranks = tuple(draws.rank for draws in epoch.draws.values() if not more.keys().isdisjoint(draws.order))
        seen = (
            f"{name}: {counted(more.total(), 'draw')} more than Leaves promises, such as sample {min(more)}, by "
            f"{names(ranks)}. {_dealt(feed)}"
        )
        why = "samples that are drawn more often weigh more, and leaves are run by two ranks"
        yield Finding("duplicates", seen, why, _ONCE, ranks, numbers={"epoch": number, "repeated": more.total()})
    if ended(feed, epoch) and (less := want - epoch.counts):
        seen = f"{name}: {less.total()} of {counted(want.total(), 'draw')} that Leaves promises were made by no rank"
        why = "what no rank draws is not trained on"
        yield Finding("missing", seen, why, _ONCE, numbers={"epoch": number, "missing": less.total()})


def _dealt(feed: Feed) -> str:
    mine = {rank: facts["leaves"]["mine"] for rank, facts in feed.facts.items()}
    return "Leaves by rank: " + "; ".join(f"rank {rank}: {', '.join(map(str, own))}" for rank, own in mine.items())
