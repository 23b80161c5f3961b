"""Samples that several ranks draw in one epoch: the mean then counts them twice, and others not at all."""

from __future__ import annotations

from collections.abc import Iterator

from ringdp.attach.finding import Finding, names
from ringdp.feed.draws import Draws, Epoch, Feed
from ringdp.feed.naming import Key
from ringdp.feed.padding import repeats

_WHY = (
    "ranks that train on the same samples do the same work: the gradient's mean has fewer distinct samples than "
    "the batch size says, and the run is not the one that a single process would make"
)
_SHARDED = (
    "sampler = DistributedSampler(dataset); DataLoader(dataset, batch_size, sampler=sampler); "
    "sampler.set_epoch(epoch) at the beginning of each epoch"
)


def check(feed: Feed) -> Iterator[Finding]:
    """The first epoch with repeated samples; padding as a note. Samplers that draw with replacement are not judged."""
    if True in feed.fact("replacement"):
        return
    yield from next(filter(None, (_unintended(feed, epoch) for epoch in feed.epochs)), [])
    yield from next(filter(None, (_padding(feed, epoch) for epoch in feed.epochs)), [])


def distinct_in_step(epoch: Epoch, step: int) -> tuple[int, int]:
    """(distinct, drawn) of one step (from 0) over all ranks."""
    keys = [key for draws in epoch.draws.values() if step < len(draws.batches) for key in draws.batches[step]]
    return len(set(keys)), len(keys)


def _unintended(feed: Feed, epoch: Epoch) -> list[Finding]:
    repeated = repeats(feed, epoch)
    if repeated.unintended <= 0:
        return []
    distinct, drawn = distinct_in_step(epoch, 0)
    numbers = {
        "epoch": epoch.number + 1,
        "drawn": epoch.drawn,
        "distinct": len(epoch.counts),
        "repeated": repeated.unintended,
        "step_1_drawn": drawn,
        "step_1_distinct": distinct,
        "step_1_distinct_share": distinct / drawn if drawn else 1.0,
    }
    at_step = f"at step 1 {distinct} of {drawn} samples are distinct ({distinct / max(drawn, 1):.1%})"
    of_data = f", {len(epoch.counts) / feed.samples:.1%} of the data set's {feed.samples}" if feed.samples else ""
    so_far = "" if epoch.ended(feed.world) else " so far"
    seen = (
        f"{feed.name}, epoch {epoch.number + 1}: {at_step}; in the epoch{so_far} {len(epoch.counts)} of {epoch.drawn}"
        f"{of_data}. {_example(epoch)}. {cause(feed, epoch)}"
    )
    return [Finding("duplicates", seen, _WHY, _fix(feed), _sharing(epoch), numbers=numbers)]


def _padding(feed: Feed, epoch: Epoch) -> list[Finding]:
    padding = repeats(feed, epoch).padding
    if not padding:
        return []
    seen = f"{feed.name}: each epoch {padding} of {epoch.drawn} draws repeat a sample, so that ranks take equal steps"
    why = "those samples weigh twice; it is meant, and counts where an epoch has few steps"
    fix = "nothing, or drop_last=True of the sampler, which leaves the rest out instead"
    return [Finding("padding", seen, why, fix, severity="note", numbers={"padding": padding, "drawn": epoch.drawn})]


def _places(epoch: Epoch, key: Key) -> Iterator[tuple[int, int]]:
    for draws in epoch.draws.values():
        for step, batch in enumerate(draws.batches):
            yield from ((draws.rank, step) for other in batch if other == key)


def _example(epoch: Epoch) -> str:
    key = next(key for key, count in epoch.counts.items() if count > 1)
    places = [f"rank {rank} at step {step + 1}" for rank, step in _places(epoch, key)]
    more = f" and {len(places) - 3} more times" if len(places) > 3 else ""
    return f"For example sample {key}: {', '.join(places[:3])}{more}"


def _sharing(epoch: Epoch) -> tuple[int, ...]:
    """Ranks that have drawn a repeated sample."""
    repeated = {key for key, count in epoch.counts.items() if count > 1}
    return tuple(d.rank for d in epoch.draws.values() if not repeated.isdisjoint(d.order))


def cause(feed: Feed, epoch: Epoch) -> str:
    """The likely reason, from what the samplers say of themselves."""
    orders = [draws.order for draws in epoch.draws.values()]
    if None in feed.fact("replicas") and feed.by != "content":
        if len(orders) > 1 and all(_same_start(orders[0], other) for other in orders[1:]):
            return "All ranks draw the same samples in the same order: nothing divides the data set between ranks"
        if any(_repeats_itself(draws) for draws in epoch.draws.values()):
            return "The sampler gives a rank the same sample again"
        return "Each rank shuffles the whole data set by itself, or its shards overlap"
    if feed.by == "content":
        return "Equal bytes: the ranks read the same shards, or the data holds samples twice"
    epochs = {draws.rank: draws.sampler_epoch for draws in epoch.draws.values()}
    if len(set(epochs.values())) > 1:
        return f"The samplers are at different epochs ({_by_rank(epochs)}): set_epoch() is not called alike"
    if len(feed.fact("seed")) > 1:
        seeds = {rank: facts["seed"] for rank, facts in feed.facts.items()}
        return f"The samplers shuffle with different seeds ({_by_rank(seeds)})"
    given = [facts["sampler_rank"] for facts in feed.facts.values()]
    if len(set(given)) < len(given):
        return "Several ranks' samplers were given the same rank"
    return "The data set or sampler gives these samples more than once"


def _same_start(one: list[Key], other: list[Key]) -> bool:
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def _repeats_itself(draws: Draws) -> bool:
    return len(set(draws.order)) < len(draws.order)


def _by_rank(values: dict[int, object]) -> str:
    shown = [f"rank {rank}: {value}" for rank, value in list(values.items())[:4]]
    return ", ".join(shown) + (", ..." if len(values) > 4 else "")


def _fix(feed: Feed) -> str:
    if feed.by == "content":
        return (
            f"let each of the {feed.world} ranks read every {feed.world}th sample or shard: "
            "itertools.islice(samples, rank, None, world) in the data set's __iter__, and by worker below that"
        )
    if None in feed.fact("replicas"):
        return _SHARDED
    return f"make DistributedSampler without rank and num_replicas, with one seed on {names(feed.facts)}; {_SHARDED}"
