"""The draws of all ranks of a job: one Feed per loader that trains, one Epoch per pass over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ringdp.tools.attach.records import RankRecords, world_of
from ringdp.tools.feed.naming import By, Key, have_leaves, keys_of, naming


@dataclass(frozen=True)
class Draws:
    """One rank's in one epoch. `ended`: its iterator came to its end; else it stopped early, or still draws.

    trained: a backward pass has come after a draw.
    """

    rank: int
    batches: tuple[tuple[Key, ...], ...]
    ended: bool
    trained: bool
    sampler_epoch: int | None

    @cached_property
    def order(self) -> list[Key]:
        """All samples, in order."""
        return [key for batch in self.batches for key in batch]


@dataclass(frozen=True)
class Epoch:
    """`number` counts from 0. `draws` by rank; a rank that drew nothing is not in it."""

    number: int
    draws: Mapping[int, Draws]

    @cached_property
    def counts(self) -> Counter[Key]:
        """How often each sample was drawn, over all ranks."""
        return Counter(key for draws in self.draws.values() for key in draws.order)

    @property
    def drawn(self) -> int:
        """Samples, repeated ones included."""
        return sum(len(draws.order) for draws in self.draws.values())

    @property
    def steps(self) -> tuple[int, int]:
        """The fewest and the most batches of a rank."""
        sizes = [len(draws.batches) for draws in self.draws.values()]
        return min(sizes), max(sizes)

    def ended(self, world: int) -> bool:
        """Whether every rank came to the end."""
        return len(self.draws) == world and all(draws.ended for draws in self.draws.values())


@dataclass(frozen=True)
class Feed:
    """A loader. `facts`: by rank, see feed/facts.py. `number`: among this job's loaders, by first use.

    weighted: gradients were divided by the ranks' numbers of samples, so those may differ.
    """

    number: int
    world: int
    facts: Mapping[int, Mapping[str, Any]]
    epochs: tuple[Epoch, ...]
    by: By
    weighted: bool = False

    @property
    def name(self) -> str:
        """The name that reports show."""
        fact = next(iter(self.facts.values()))
        return f"loader {self.number} ({fact['dataset']}, {fact['sampler']})"

    def fact(self, name: str) -> set[Any]:
        """The values that ranks have."""
        return {facts[name] for facts in self.facts.values()}

    @property
    def has_leaves(self) -> bool:
        """Whether all ranks' samplers are a ringdp.elastic.Leaves."""
        return have_leaves(self.facts)

    @property
    def samples(self) -> int | None:
        """How many there are to draw, over all ranks; None where the data sets do not say."""
        if self.by == "not known" or None in self.fact("length"):
            return None
        if self.by == "own index":
            return sum(facts["length"] for facts in self.facts.values())
        return sum(length for length, _ in {(facts["length"], facts["part"]) for facts in self.facts.values()})


def feeds_of(ranks: Mapping[int, RankRecords], *, only_training: bool = True) -> list[Feed]:
    """From the records of a job's ranks. only_training: loaders without a backward pass between draws are left out.

    Loaders are matched between ranks by the order of their first use.
    """
    chosen = {rank: _loaders(records, only_training) for rank, records in ranks.items()}
    return [_feed(place, ranks, chosen) for place in range(max(map(len, chosen.values()), default=0))]


def unwatched(ranks: Mapping[int, RankRecords]) -> list[str]:
    """Loaders that feeds_of() leaves out on every rank, by data set."""
    left = {}
    for records in ranks.values():
        trains = _loaders(records, True)
        others = [row for row in records.of("loader") if row["loader"] not in trains and not _is_idle(row)]
        left |= {row["loader"]: row["dataset"] for row in others}
    return [f"loader {number} ({dataset})" for number, dataset in sorted(left.items())]


def _is_idle(loader: Mapping[str, Any]) -> bool:
    """A loader of leaves on a rank that has none, which happens where there are fewer leaves than ranks."""
    return bool(loader.get("leaves")) and not loader["leaves"]["mine"]


def _loaders(records: RankRecords, only_training: bool) -> list[int]:
    numbers = [row["loader"] for row in records.of("loader")]
    trained = {row["loader"] for row in records.of("trained")}
    return [number for number in numbers if number in trained or not only_training]


def _feed(place: int, ranks: Mapping[int, RankRecords], chosen: Mapping[int, list[int]]) -> Feed:
    numbers = {rank: loaders[place] for rank, loaders in chosen.items() if place < len(loaders)}
    facts = {}
    batches = {}
    for rank, number in numbers.items():
        facts[rank] = next(row for row in ranks[rank].of("loader") if row["loader"] == number)
        batches[rank] = [row for row in ranks[rank].of("batch") if row["loader"] == number]
    by = naming(batches, facts)
    epochs: dict[int, dict[int, Draws]] = {}
    for rank, number in numbers.items():
        for draws_number, draws in _draws(rank, number, ranks[rank], batches[rank], by):
            epochs.setdefault(draws_number, {})[rank] = draws
    rows = tuple(Epoch(number, dict(sorted(draws.items()))) for number, draws in sorted(epochs.items()))
    weighted = any(row.get("weighted") for rank in numbers for row in ranks[rank].of("trained"))
    return Feed(min(numbers.values()), world_of(ranks), facts, rows, by, weighted)


def _draws(
    rank: int, loader: int, records: RankRecords, batches: list[dict[str, Any]], by: By
) -> Iterator[tuple[int, Draws]]:
    ended, trained = ({row["epoch"] for row in records.of(k) if row["loader"] == loader} for k in ("end", "trained"))
    drawn: dict[int, list[tuple[Key, ...]]] = {}
    for row in batches:
        drawn.setdefault(row["epoch"], []).append(keys_of(rank, row, by))
    for row in records.of("epoch"):
        number = row["epoch"]
        if row["loader"] == loader and (number in drawn or number in ended):
            own = tuple(drawn.get(number, ()))
            yield number, Draws(rank, own, number in ended, number in trained, row["sampler_epoch"])


@dataclass(frozen=True)
class Repeats:
    """Repeated draws of an epoch, over all ranks, and how many of them are padding."""

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
    # An unknown sampler: padding if all was drawn, and it made ranks even.
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
