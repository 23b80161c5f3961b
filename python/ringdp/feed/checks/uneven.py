"""Ranks with different numbers of batches, or batches of different sizes in one step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from ringdp.attach.finding import Finding, names
from ringdp.feed.draws import Epoch, Feed

_FIX = (
    "DistributedSampler pads or drops alike on all ranks; DataLoader(drop_last=True) leaves the last batch out; "
    "ringdp.DistributedDataParallel.backward(loss_sum, weight=samples) is exact with any sizes"
)


def check(feed: Feed) -> Iterator[Finding]:
    """The first epoch with unequal counts, and the first step with unequal sizes; neither matters to weighted means."""
    if feed.weighted:
        return
    yield from next(filter(None, (_counts(feed, epoch) for epoch in feed.epochs)), [])
    yield from next(filter(None, (_sizes(feed, epoch) for epoch in feed.epochs)), [])


def _counts(feed: Feed, epoch: Epoch) -> list[Finding]:
    """Of ranks that came to the end: one that stopped early has others to wait for."""
    counts = {rank: len(draws.batches) for rank, draws in epoch.draws.items() if draws.ended}
    more = {rank: len(draws.batches) for rank, draws in epoch.draws.items() if not draws.ended}
    fewest = min(counts.values(), default=0)
    ahead = {rank: n for rank, n in {**counts, **more}.items() if n > fewest}
    if not counts or not ahead:
        return []
    short = [rank for rank, count in counts.items() if count == fewest]
    seen = (
        f"{feed.name}, epoch {epoch.number + 1}: {names(short)} had {fewest} batches, "
        f"{names(ahead)} had {max(ahead.values())}"
    )
    why = "a rank without a batch does not take part in the others' gradients: they hang, or pair steps wrongly"
    fix = f"{_FIX}; or run the loop inside `with model.join():`"
    numbers = {"epoch": epoch.number + 1, "fewest": fewest, "most": max(ahead.values())}
    return [Finding("uneven steps", seen, why, fix, tuple(short), numbers=numbers)]


def _sizes(feed: Feed, epoch: Epoch) -> list[Finding]:
    by_rank = [[len(batch) for batch in draws.batches] for draws in epoch.draws.values()]
    for step, sizes in enumerate(zip_longest(*by_rank)):
        present = [size for size in sizes if size is not None]
        if len(set(present)) > 1:
            least, most = min(present), max(present)
            small = [rank for rank, size in zip(epoch.draws, sizes, strict=True) if size == least]
            seen = (
                f"{feed.name}, epoch {epoch.number + 1}, step {step + 1}: {names(small)} had {least} samples, "
                f"others up to {most}"
            )
            why = "a mean over ranks gives every rank the same weight, so samples of small batches count for more"
            numbers = {"epoch": epoch.number + 1, "step": step + 1, "least": least, "most": most}
            return [Finding("uneven sizes", seen, why, _FIX, tuple(small), numbers=numbers)]
    return []
