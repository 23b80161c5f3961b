"""The steps of micro-batches (leaves) of all ranks of a job, and the checks of an audit over them.

check_steps      ranks that are at different steps, and a step whose number comes again
check_numbers    a leaf that several ranks have run, or one rank twice; one that nobody has run, or that there is not
check_seeds      a rank whose leaves have other seeds
check_settings   a rank whose ringdp.elastic.Leaves has other settings
check_shares     a leaf that was run on the samples of another one, or of another step or epoch
check_epochs     leaves' samples that were asked for and run twice in an epoch, or not at all
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringdp.text.units import counted, names, ranks_by_value
from ringdp.tools.attach.finding import Finding
from ringdp.tools.attach.records import RankRecords, world_of
from ringdp.tools.feed.recorder import SETTINGS

_MOST = 1 << 16  # micro-batches of a step: no job has more, and looking through more would take long


@dataclass(frozen=True)
class Share:
    """The samples of one leaf, as a ringdp.elastic.Leaves names them. leaves: its number; drawn: by a loader."""

    leaves: int
    epoch: int
    step: int
    leaf: int
    drawn: bool

    def __str__(self) -> str:
        return f"leaf {self.leaf} of step {self.step} of epoch {self.epoch}"


@dataclass(frozen=True)
class Leaf:
    """One that a rank has run. share: None where it is not known."""

    rank: int
    index: int
    seed: int
    share: Share | None


@dataclass(frozen=True)
class LeafStep:
    """What ranks have run until one average. numbers: by rank, the step's; ended: all ranks are known to be there."""

    leaves: tuple[Leaf, ...]
    numbers: Mapping[int, int]
    micro_batches: int | None
    ended: bool

    @property
    def name(self) -> str:
        """The name that reports show."""
        return f"step {next(iter(self.numbers.values()))}"


def leaf_steps_of(ranks: Mapping[int, RankRecords]) -> list[LeafStep]:
    """In order, without those in which no leaf was run, which several optimizers have."""
    rows = {rank: records.of("leaf_step") for rank, records in ranks.items()}
    world = world_of(ranks)
    found = []
    for place in range(max(map(len, rows.values()), default=0)):
        here = {rank: own[place] for rank, own in rows.items() if place < len(own)}
        leaves = tuple(_leaf(rank, *values) for rank, row in here.items() for values in row["leaves"])
        counts = {row["of"] for row in here.values()}
        numbers = {rank: row["step"] for rank, row in here.items() if row["leaves"]}
        if leaves:
            found.append(LeafStep(leaves, numbers, counts.pop() if len(counts) == 1 else None, len(here) == world))
    return found


def _leaf(rank: int, index: int, seed: int, share: Sequence[Any] | None) -> Leaf:
    return Leaf(rank, index, seed, None if share is None else Share(*share))


def leaf_findings(ranks: Mapping[int, RankRecords], steps: Sequence[LeafStep]) -> Iterator[Finding]:
    """At most one per check."""
    yield from check_settings(ranks)
    for check in (check_steps, check_numbers, check_seeds, check_shares, check_epochs):
        yield from check(steps)


def check_steps(steps: Sequence[LeafStep]) -> Iterator[Finding]:
    """Where ranks differ first; a repeated number is looked for where they do not."""
    apart = next((step for step in steps if len(set(step.numbers.values())) > 1), None)
    if apart is not None:
        of_each = ranks_by_value(apart.numbers).items()
        seen = ", ".join(f"{names(ranks)} {'is' if len(ranks) == 1 else 'are'} at step {n}" for n, ranks in of_each)
        why = "random numbers and samples of a leaf depend on its step, so the result depends on who ran which leaf"
        fix = "count steps in the same way on every rank, and end each of them on every rank, also without a leaf"
        yield Finding(
            "leaf step", seen, why, fix, minority(apart.numbers), numbers={"steps": list(apart.numbers.values())}
        )
        return
    again = [number for number, count in Counter(next(iter(s.numbers.values())) for s in steps).items() if count > 1]
    if again:
        seen = f"ringdp.leaf was given {names(again, 'step')} more than once in the run"
        why = (
            "a leaf's random numbers depend on (seed, step, leaf): dropout and augmentation repeat what they did before"
        )
        fix = "ringdp.leaf(leaves.first_step(epoch) + step, i), or one counter of steps for the whole run"
        yield Finding("leaf step", seen, why, fix, numbers={"steps": again})


def minority(values: Mapping[int, Any]) -> tuple[int, ...]:
    """The ranks whose value is not that of most ranks; of equally many, that of the first."""
    common = Counter(map(repr, values.values())).most_common(1)
    return tuple(rank for rank, value in values.items() if common and repr(value) != common[0][0])


_ONCE = "each of the micro-batches 0 to M - 1 is run once in a step, by one rank: leaves.mine() deals them out"


def check_numbers(steps: Sequence[LeafStep]) -> Iterator[Finding]:
    """The first step with each fault. A leaf is missing only in a step that all ranks are known to have ended."""
    for check in (_twice, _outside, _missing):
        bad = [(step, found) for step in steps if (found := check(step))]
        if bad:
            step, (kind, seen, why, ranks, leaves) = bad[0]
            more = f"; likewise in {counted(len(bad) - 1, 'more step')}" if len(bad) > 1 else ""
            numbers = {"leaves": leaves, "steps": len(bad)}
            yield Finding(kind, f"{step.name}: {seen}{more}", why, _ONCE, ranks, numbers=numbers)


_Found = tuple[str, str, str, tuple[int, ...], list[int]]


def _twice(step: LeafStep) -> _Found | None:
    ranks_of: dict[int, list[int]] = {}
    for leaf in step.leaves:
        ranks_of.setdefault(leaf.index, []).append(leaf.rank)
    twice = {index: ranks for index, ranks in ranks_of.items() if len(ranks) > 1}
    if not twice:
        return None
    index, ranks = min(twice.items())
    who = f"by {names(set(ranks))}" if len(set(ranks)) > 1 else f"twice by rank {ranks[0]}"
    more = f", and {_named(sorted(twice)[1:])} likewise" if len(twice) > 1 else ""
    shared = tuple(sorted({rank for several in twice.values() for rank in several}))
    why = "its samples weigh twice, and the step has not the result that it has with another number of ranks"
    return "leaf twice", f"leaf {index} was run {who}{more}", why, shared, sorted(twice)


def _outside(step: LeafStep) -> _Found | None:
    if step.micro_batches is None:
        return None
    outside = {leaf.index: leaf.rank for leaf in step.leaves if not 0 <= leaf.index < step.micro_batches}
    if not outside:
        return None
    index, rank = min(outside.items())
    seen = f"rank {rank} ran leaf {index}, and the leaves are 0 to {step.micro_batches - 1}"
    return "no such leaf", seen, "it belongs to no step", tuple(sorted(set(outside.values()))), sorted(outside)


def _missing(step: LeafStep) -> _Found | None:
    if step.micro_batches is None or not step.ended or step.micro_batches > _MOST:
        return None
    missing = sorted(set(range(step.micro_batches)) - {leaf.index for leaf in step.leaves})
    if not missing:
        return None
    seen = f"no rank has run {_named(missing)} of {step.micro_batches}"
    why = "its samples are not trained on, and the mean is not that of the step"
    return "leaf missing", seen, why, (), missing


def _named(leaves: Sequence[int]) -> str:
    return names(leaves, "leaf").replace("leafs", "leaves")


def check_seeds(steps: Sequence[LeafStep]) -> Iterator[Finding]:
    """The first step whose leaves have several seeds."""
    for step in steps:
        seeds: dict[int, set[int]] = {}
        for leaf in step.leaves:
            seeds.setdefault(leaf.rank, set()).add(leaf.seed)
        if len(set().union(*seeds.values())) > 1:
            others = minority({rank: sorted(own) for rank, own in seeds.items()})
            given = "; ".join(f"rank {rank}: {', '.join(map(str, sorted(own)))}" for rank, own in seeds.items())
            seen = f"{step.name}: the leaves have different seeds (by rank, ringdp.leaf's seed=: {given})"
            why = "who runs a leaf then decides its random numbers, so the result depends on the number of ranks"
            yield Finding("leaf seed", seen, why, "give ringdp.leaf the same seed on every rank", others)
            return


def check_settings(ranks: Mapping[int, RankRecords]) -> Iterator[Finding]:
    """Of those whose samples were used; those of loaders are compared earlier, by promise.py."""
    rows = {rank: records.of("leaves") for rank, records in ranks.items() if records.of("leaves")}
    for place in range(min(map(len, rows.values()), default=0)):
        here = {rank: {name: own[place][name] for name in SETTINGS} for rank, own in rows.items()}
        if finding := settings_finding(here):
            yield finding
            return


def settings_finding(settings: Mapping[int, Mapping[str, Any]]) -> Finding | None:
    """By rank: what its Leaves was made with. None where they agree."""
    different = [name for name in SETTINGS if len({repr(own[name]) for own in settings.values()}) > 1]
    if not different:
        return None
    name = different[0]
    values = {rank: own[name] for rank, own in settings.items()}
    others = minority(values)
    common = next(value for rank, value in values.items() if rank not in others)
    seen = f"Leaves of {names(others)} has {name}={values[others[0]]!r}, that of the others {name}={common!r}"
    why = "each rank then cuts another order of the samples: some are drawn twice and others not at all"
    fix = f"ringdp.elastic.Leaves with the same arguments on every rank ({', '.join(different)})"
    return Finding("leaves differ", seen, why, fix, others, numbers={"given": list(values.values())})


def check_shares(steps: Sequence[LeafStep]) -> Iterator[Finding]:
    """The first leaf that has another one's samples; the first step whose leaves have samples of several steps."""
    for step in steps:
        for leaf in step.leaves:
            if leaf.share is not None and leaf.share.leaf != leaf.index:
                seen = f"{step.name}: rank {leaf.rank} ran leaf {leaf.index} on the samples of {leaf.share}"
                why = "samples then depend on who runs the leaf, and the result on the number of ranks"
                fix = "zip the batches of a step with leaves.mine(), or ask leaves.indices(epoch, step, i) for leaf i"
                yield Finding("leaf samples", seen, why, fix, (leaf.rank,), numbers={"leaf": leaf.index})
                return
        places = {leaf.rank: (leaf.share.epoch, leaf.share.step) for leaf in step.leaves if leaf.share is not None}
        if len(set(places.values())) > 1:
            given = "; ".join(f"rank {rank}: step {at} of epoch {epoch}" for rank, (epoch, at) in places.items())
            seen = f"{step.name}: the leaves have the samples of different steps ({given})"
            why = "samples of one step are drawn again in another, or not at all"
            fix = "leaves.set_epoch(epoch) and the same steps on every rank"
            yield Finding("leaf samples", seen, why, fix, minority(places), numbers={"places": len(set(places))})
            return


def check_epochs(steps: Sequence[LeafStep]) -> Iterator[Finding]:
    """Of leaves whose samples no loader has drawn: promise.py has that check."""
    run: dict[tuple[int, int], Counter[int]] = {}  # by Leaves and epoch: how often each of its steps
    for step in steps:
        asked = {leaf.share for leaf in step.leaves if leaf.share is not None and not leaf.share.drawn}
        for leaves, epoch, at in {(share.leaves, share.epoch, share.step) for share in asked} if step.ended else ():
            run.setdefault((leaves, epoch), Counter())[at] += 1
    for (_, epoch), counts in run.items():
        if twice := [at for at, count in counts.items() if count > 1]:
            seen = f"the samples of {names(twice, 'step')} of epoch {epoch} were run more than once"
            why = "an epoch has each of its samples once; these weigh twice, and others are not trained on"
            fix = "ask leaves.indices(epoch, step, i) with the epoch that is trained, and for each of its steps once"
            yield Finding("samples twice", seen, why, fix, numbers={"epoch": epoch, "steps": sorted(twice)})
            return
        first, last = min(counts), max(counts)
        if skipped := sorted(set(range(first, last)) - set(counts)) if last - first < _MOST else []:
            seen = f"no rank has run the samples of {names(skipped, 'step')} of epoch {epoch}, but those of later ones"
            why = "an epoch has each of its samples once; these are not trained on"
            fix = "run the steps of an epoch one after the other"
            yield Finding("samples left out", seen, why, fix, numbers={"epoch": epoch, "steps": skipped})
            return
