"""From what ranks have drawn to findings and a table: the whole of an audit but for collecting and printing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ringdp.attach.finding import Finding, names
from ringdp.attach.records import RankRecords, absent, world_of
from ringdp.feed.checks import duplicates, missing, rank_argument, stale, uneven
from ringdp.feed.draws import Epoch, Feed, feeds_of, unwatched
from ringdp.feed.padding import repeats

_UNCOMPARED = (
    "duplicates and missing samples: no two ranks' samples of one index have been compared yet, and ranks with data of "
    "their own number them alike"
)
_OWN_DATA = (
    "ranks' samples of one index have different bytes, so each rank is taken to have data of its own; padding and "
    "augmentation look the same, and then duplicates are not seen"
)
CHECKS = (rank_argument.check, duplicates.check, missing.check, stale.check, uneven.check)


@dataclass(frozen=True)
class Row:
    """One epoch of one loader, over all ranks. `padding` is part of neither `repeated` nor `missing`.

    missing: None while ranks still draw, or where the size of the data set is not known, or whether they share it.
    """

    loader: str
    epoch: int
    steps: str
    drawn: int
    distinct: int
    repeated: int
    padding: int
    missing: int | None
    by: str


@dataclass(frozen=True)
class Cost:
    """Of writing down: seconds in the slowest rank, of those between its first iterator and its last draw."""

    seconds: float
    span: float
    draws: int

    @property
    def share(self) -> float:
        """Of a step."""
        return self.seconds / self.span if self.span else 0.0


@dataclass(frozen=True)
class Report:
    """What an audit says. `not_judged`: sentences about what could not be, and why."""

    world: int
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    not_judged: tuple[str, ...]
    cost: Cost

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "world": self.world,
            "rows": [asdict(row) for row in self.rows],
            "findings": [finding.as_dict() for finding in self.findings],
            "not_judged": list(self.not_judged),
            "cost": {**asdict(self.cost), "share": self.cost.share},
        }


def report_from(values: Mapping[str, Any]) -> Report:
    """What as_dict() was made of."""
    cost = values["cost"]
    return Report(
        world=values["world"],
        rows=tuple(Row(**row) for row in values["rows"]),
        findings=tuple(Finding(**{**row, "ranks": tuple(row["ranks"])}) for row in values["findings"]),
        not_judged=tuple(values["not_judged"]),
        cost=Cost(cost["seconds"], cost["span"], cost["draws"]),
    )


def judge(ranks: Mapping[int, RankRecords], *, only_training: bool = True) -> Report:
    """The report on these records; they may be those of a job that still runs."""
    feeds = feeds_of(ranks, only_training=only_training)
    return Report(
        world=world_of(ranks),
        rows=tuple(_row(feed, epoch) for feed in feeds for epoch in feed.epochs),
        findings=findings_of(feeds),
        not_judged=tuple(_not_judged(ranks, feeds, only_training)),
        cost=_cost(ranks),
    )


def findings_of(feeds: Sequence[Feed]) -> tuple[Finding, ...]:
    """Problems before notes."""
    judged = [feed for feed in feeds if len(feed.facts) == feed.world > 1]
    return problems_first(finding for feed in judged for check in CHECKS for finding in check(feed))


def problems_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Notes after them."""
    return tuple(sorted(findings, key=lambda finding: finding.severity != "problem"))


def _row(feed: Feed, epoch: Epoch) -> Row:
    fewest, most = epoch.steps
    repeated = repeats(feed, epoch)
    known = feed.samples is not None and feed.by != "content" and epoch.ended(feed.world)
    return Row(
        loader=feed.name,
        epoch=epoch.number + 1,
        steps=str(most) if fewest == most else f"{fewest} to {most}",
        drawn=epoch.drawn,
        distinct=len(epoch.counts),
        repeated=repeated.unintended,
        padding=repeated.padding,
        missing=max(0, (feed.samples or 0) - len(epoch.counts)) if known else None,
        by=feed.by,
    )


def _not_judged(ranks: Mapping[int, RankRecords], feeds: Sequence[Feed], only_training: bool) -> list[str]:
    said = []
    if not ranks:
        return ["no rank has iterated a DataLoader or DistributedSampler"]
    world = world_of(ranks)
    if missing_ranks := absent(ranks):
        said.append(f"{names(missing_ranks)} of {world} left no records: on another host, or drew nothing")
    if world == 1:
        said.append("one rank has nobody to share samples with: duplicates and missing samples need several")
    for feed in feeds:
        if len(feed.facts) < feed.world:
            idle = [rank for rank in range(feed.world) if rank not in feed.facts]
            said.append(f"{feed.name}: {names(idle)} did not draw from it")
        elif True in feed.fact("replacement"):
            said.append(f"{feed.name}: it draws with replacement, so repeated samples are meant")
        elif feed.by == "not known":
            said.append(f"{feed.name}: {_UNCOMPARED}")
        elif feed.by == "own index":
            said.append(f"{feed.name}: {_OWN_DATA}")
        elif feed.samples is None or feed.by == "content":
            said.append(f"{feed.name}: samples have no indices, so missing samples cannot be known")
    if only_training:
        said += [f"{name}: no backward pass came between its draws" for name in unwatched(ranks)]
    return said


def _cost(ranks: Mapping[int, RankRecords]) -> Cost:
    latest = [records.of("cost")[-1] for records in ranks.values() if records.of("cost")]
    costs = [Cost(row["seconds"], row["span"], row["draws"]) for row in latest]
    return max(costs, key=lambda cost: cost.share, default=Cost(0.0, 0.0, 0))
