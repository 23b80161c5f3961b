"""The checks of an audit: each is a function of a Feed that yields findings, at most one per check and loader.

check_rank_arguments   a DistributedSampler that was given another rank, or another number of ranks, than the job has
check_duplicates       samples that several ranks draw in one epoch: the mean counts them twice, and others not at all
check_missing          samples that no rank draws in a whole epoch
check_stale            an epoch in the order of the one before: a shuffle that set_epoch() was never told to renew
check_uneven           ranks with different numbers of batches, or batches of different sizes in one step
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, zip_longest

from ringdp.text.units import counted, names
from ringdp.tools.attach.finding import Finding
from ringdp.tools.feed.draws import Draws, Epoch, Feed, dropped, repeats
from ringdp.tools.feed.naming import Key

_RANK_WHY = (
    "ranks that share a sampler's rank draw the same share, and the share of the rank that is missing is never drawn"
)
_RANK_FIX = (
    "DistributedSampler(dataset) takes both from the process group; in a group of their own, both from that group"
)


def check_rank_arguments(feed: Feed) -> Iterator[Finding]:
    """Rank and number of ranks are known before the first step. Permuted ranks are fine: their shares are disjoint."""
    if None in feed.fact("replicas"):
        return
    wrong = tuple(rank for rank, facts in feed.facts.items() if facts["replicas"] != feed.world)
    if wrong:
        given = sorted(feed.fact("replicas"))
        seen = f"{feed.name}: a DistributedSampler for {counted(given[0], 'rank')} in a job of {feed.world}"
        yield Finding("wrong rank", seen, _RANK_WHY, _RANK_FIX, wrong, numbers={"replicas": given, "world": feed.world})
        return
    given = {rank: facts["sampler_rank"] for rank, facts in feed.facts.items()}
    shared = {value for value, count in Counter(given.values()).items() if count > 1}
    if shared:
        ranks = tuple(rank for rank, value in given.items() if value in shared)
        said = ", ".join(f"rank {rank} has rank={given[rank]}" for rank in ranks[:4])
        seen = f"{feed.name}: DistributedSamplers of several ranks have the same rank: {said}"
        yield Finding("wrong rank", seen, _RANK_WHY, _RANK_FIX, ranks, numbers={"given": list(given.values())})


_DUPLICATES_WHY = (
    "ranks that train on the same samples do the same work: the gradient's mean has fewer distinct samples than "
    "the batch size says, and the result differs from that of a single process"
)
_SHARDED = (
    "sampler = DistributedSampler(dataset); DataLoader(dataset, batch_size, sampler=sampler); "
    "sampler.set_epoch(epoch) at the beginning of each epoch"
)


def check_duplicates(feed: Feed) -> Iterator[Finding]:
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
    at_step = f"at step 1 {distinct} of {counted(drawn, 'sample')} are distinct ({distinct / max(drawn, 1):.1%})"
    of_data = f" ({len(epoch.counts) / feed.samples:.1%} of the data set's {feed.samples})" if feed.samples else ""
    so_far = "" if epoch.ended(feed.world) else " so far"
    seen = (
        f"{feed.name}, epoch {epoch.number + 1}: {at_step}; in the epoch{so_far} {len(epoch.counts)} of {epoch.drawn}"
        f"{of_data}. {_example(epoch)}. {cause(feed, epoch)}"
    )
    return [Finding("duplicates", seen, _DUPLICATES_WHY, _fix(feed), _sharing(epoch), numbers=numbers)]


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
            return "All ranks draw the same samples in the same order: no sampler divides the data set between them"
        if any(_repeats_itself(draws) for draws in epoch.draws.values()):
            return "The sampler gives a rank the same sample again"
        return "Each rank shuffles the whole data set by itself, or its shards overlap"
    if feed.by == "content":
        return "Equal bytes: the ranks read the same shards, or the data holds samples twice"
    epochs = {draws.rank: draws.sampler_epoch for draws in epoch.draws.values()}
    if len(set(epochs.values())) > 1:
        return f"The samplers are at different epochs ({_by_rank(epochs)}): ranks call set_epoch() differently"
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


def check_missing(feed: Feed) -> Iterator[Finding]:
    """The first epoch that all ranks came to the end of, and that left samples out; by drop_last it is a note."""
    if feed.samples is None or feed.by == "content" or True in feed.fact("replacement"):
        return
    for epoch in feed.epochs:
        missing = feed.samples - len(epoch.counts)
        if epoch.ended(feed.world) and missing > 0:
            yield _left_out(feed, epoch, missing)
            return


def _left_out(feed: Feed, epoch: Epoch, missing: int) -> Finding:
    part = f"{missing} of {counted(feed.samples, 'sample')} ({missing / feed.samples:.1%})"
    seen = f"{feed.name}, epoch {epoch.number + 1}: {part}"
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


_ENOUGH = 8  # samples: fewer may come in the same order twice by chance


def check_stale(feed: Feed) -> Iterator[Finding]:
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


_UNEVEN_FIX = (
    "DistributedSampler pads or drops equally on all ranks; DataLoader(drop_last=True) leaves the last batch out; "
    "ringdp.DistributedDataParallel.backward(loss_sum, weight=samples) is exact with any sizes"
)


def check_uneven(feed: Feed) -> Iterator[Finding]:
    """The first epoch with unequal counts, and the first step with unequal sizes; neither matters to weighted means."""
    if feed.weighted:
        return
    yield from next(filter(None, (_counts(feed, epoch) for epoch in feed.epochs)), [])
    yield from next(filter(None, (_sizes(feed, epoch) for epoch in feed.epochs)), [])


def _counts(feed: Feed, epoch: Epoch) -> list[Finding]:
    """Only ranks that came to the end are short: one that stopped early waits for others."""
    counts = {rank: len(draws.batches) for rank, draws in epoch.draws.items() if draws.ended}
    more = {rank: len(draws.batches) for rank, draws in epoch.draws.items() if not draws.ended}
    fewest = min(counts.values(), default=0)
    ahead = {rank: n for rank, n in {**counts, **more}.items() if n > fewest}
    if not counts or not ahead:
        return []
    short = [rank for rank, count in counts.items() if count == fewest]
    seen = (
        f"{feed.name}, epoch {epoch.number + 1}: {names(short)} had {counted(fewest, 'batch')}, "
        f"{names(ahead)} had {max(ahead.values())}"
    )
    why = "a rank without a batch does not take part in the others' gradients: they hang, or pair steps wrongly"
    fix = f"{_UNEVEN_FIX}; or run the loop inside `with model.join():`"
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
                f"{feed.name}, epoch {epoch.number + 1}, step {step + 1}: {names(small)} had "
                f"{counted(least, 'sample')}, others up to {most}"
            )
            why = "a mean over ranks gives every rank the same weight, so samples of small batches count for more"
            numbers = {"epoch": epoch.number + 1, "step": step + 1, "least": least, "most": most}
            return [Finding("uneven sizes", seen, why, _UNEVEN_FIX, tuple(small), numbers=numbers)]
    return []
