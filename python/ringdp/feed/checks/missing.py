"""Samples that no rank draws in a whole epoch."""

from __future__ import annotations

from collections.abc import Iterator

from ringdp.attach.finding import Finding
from ringdp.feed.draws import Epoch, Feed
from ringdp.feed.padding import dropped


def check(feed: Feed) -> Iterator[Finding]:
    """The first epoch that all ranks came to the end of, and that left samples out; by drop_last it is a note."""
    if feed.samples is None or feed.by == "content" or True in feed.fact("replacement"):
        return
    for epoch in feed.epochs:
        missing = feed.samples - len(epoch.counts)
        if epoch.ended(feed.world) and missing > 0:
            yield _left_out(feed, epoch, missing)
            return


def _left_out(feed: Feed, epoch: Epoch, missing: int) -> Finding:
    seen = f"{feed.name}, epoch {epoch.number + 1}: {missing} of {feed.samples} samples ({missing / feed.samples:.1%})"
    numbers = {"epoch": epoch.number + 1, "missing": missing, "samples": feed.samples}
    numbers["seen_share"] = len(epoch.counts) / feed.samples
    if missing <= dropped(feed):
        why = "drop_last leaves them out, so that all ranks have equal batches; a shuffle leaves out others each epoch"
        fix = "nothing, or drop_last=False, which pads or makes the last batch smaller"
        return Finding("dropped", f"{seen} were left out", why, fix, severity="note", numbers=numbers)
    why = "what no rank draws is not trained on; with the samples of other ranks drawn twice, the data are not the data"
    fix = (
        "the ranks' shares together must be the data set: DistributedSampler(dataset) on every rank with the same "
        "length, seed and epoch; for Subsets, make their union the whole"
    )
    return Finding("missing", f"{seen} were drawn by no rank", why, fix, numbers=numbers)
