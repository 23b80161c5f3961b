"""Samples that a sampler repeats or leaves out on purpose, so that all ranks take equally many steps."""

from __future__ import annotations

from dataclasses import dataclass

from ringdp.feed.draws import Epoch, Feed
from ringdp.feed.naming import Key


@dataclass(frozen=True)
class Repeats:
    """Of an epoch: draws beyond a sample's first, over all ranks, and how many of them are padding."""

    total: int
    padding: int

    @property
    def unintended(self) -> int:
        """What no padding explains."""
        return self.total - self.padding


def repeats(feed: Feed, epoch: Epoch) -> Repeats:
    """Padding lies at the end of a rank's samples, and there is no more of it than it takes to make ranks even."""
    total = epoch.drawn - len(epoch.counts)
    if not total:
        return Repeats(0, 0)
    if feed.by == "content" and feed.fact("pads") == {True} and feed.samples is not None:
        # Workers that hand out in any order: it may be anywhere.
        return Repeats(total, min(total, -feed.samples % feed.world))
    padding = min(_at_the_ends(feed, epoch), _allowed(feed, epoch))
    if None in feed.fact("pads") and padding < total:
        return Repeats(total, 0)
    return Repeats(total, padding)


def _allowed(feed: Feed, epoch: Epoch) -> int:
    samples, world = feed.samples, feed.world
    if samples is None or feed.by != "index":
        return 0
    if feed.fact("pads") == {True}:
        return -samples % world
    if feed.fact("pads") == {False}:
        return 0
    # A sampler that nobody knows here: padding if all was drawn, and it made ranks even.
    even = epoch.ended(world) and len({len(draws.order) for draws in epoch.draws.values()}) == 1
    whole_batches = world * max((size or 1) for size in feed.fact("batch_size"))
    return whole_batches - 1 if even and len(epoch.counts) == samples else 0


def _at_the_ends(feed: Feed, epoch: Epoch) -> int:
    """Repeated samples that are a rank's last one, or for unknown samplers in its last batch."""
    last_only = None not in feed.fact("pads")
    found: set[tuple[int, int]] = set()
    repeated: set[Key] = {key for key, count in epoch.counts.items() if count > 1}
    for draws in epoch.draws.values():
        if draws.ended and draws.batches:
            tail = draws.batches[-1][-1:] if last_only else draws.batches[-1]
            found |= {(draws.rank, place) for place, key in enumerate(tail) if key in repeated}
    return len(found)


def dropped(feed: Feed) -> int:
    """How many samples of an epoch may be left out on purpose: by drop_last of sampler and loader."""
    samples, world = feed.samples, feed.world
    if samples is None:
        return 0
    sharded = None not in feed.fact("replicas")
    rest = samples % world if sharded and feed.fact("pads") == {False} else 0
    if feed.fact("drop_last") == {True}:
        rest += world * (max((size or 1) for size in feed.fact("batch_size")) - 1)
    return rest
