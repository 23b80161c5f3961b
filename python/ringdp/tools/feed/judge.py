"""From what ranks have drawn to findings and a table: the whole of an audit but for collecting and printing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ringdp.text.table import print_table
from ringdp.text.units import counted, names
from ringdp.tools.attach.finding import Finding, problems, show_findings
from ringdp.tools.attach.records import RankRecords, absent, world_of
from ringdp.tools.feed import checks
from ringdp.tools.feed.draws import Epoch, Feed, feeds_of, repeats, unwatched
from ringdp.tools.feed.leaf_steps import LeafStep, leaf_findings, leaf_steps_of
from ringdp.tools.feed.promise import check_leaves, drawers, ended, promised

_UNCOMPARED = (
    "duplicates and missing samples: no two ranks' samples of one index have been compared yet, and ranks with data of "
    "their own use the same numbers"
)
_OWN_DATA = (
    "ranks' samples of one index have different bytes, so each rank is taken to have data of its own; padding and "
    "augmentation look the same, and then duplicates are not seen"
)
CHECKS = (
    checks.check_rank_arguments,
    checks.check_duplicates,
    checks.check_missing,
    checks.check_stale,
    checks.check_uneven,
)


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
    """The cost of recording: seconds in the slowest rank, of those between its first iterator and its last draw."""

    seconds: float
    span: float
    draws: int

    @property
    def share(self) -> float:
        """The share of a step's time."""
        return self.seconds / self.span if self.span else 0.0


@dataclass(frozen=True)
class Report:
    """What an audit says. `not_judged`: sentences about what could not be, and why. leaf_steps: how many were judged of
    those that consist of micro-batches (leaves).
    """

    world: int
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    not_judged: tuple[str, ...]
    cost: Cost
    leaf_steps: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "world": self.world,
            "rows": [asdict(row) for row in self.rows],
            "findings": [finding.as_dict() for finding in self.findings],
            "not_judged": list(self.not_judged),
            "cost": {**asdict(self.cost), "share": self.cost.share},
            "leaf_steps": self.leaf_steps,
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
        leaf_steps=values["leaf_steps"],
    )


def judge(ranks: Mapping[int, RankRecords], *, only_training: bool = True) -> Report:
    """The report on these records; they may be those of a job that still runs."""
    feeds = feeds_of(ranks, only_training=only_training)
    steps = leaf_steps_of(ranks)
    return Report(
        world=world_of(ranks),
        rows=tuple(_row(feed, epoch) for feed in feeds for epoch in feed.epochs),
        findings=problems_first(_each_once([*findings_of(feeds), *leaf_findings(ranks, steps)])),
        not_judged=tuple(_not_judged(ranks, feeds, steps, only_training)),
        cost=_cost(ranks),
        leaf_steps=sum(step.ended for step in steps),
    )


def findings_of(feeds: Sequence[Feed]) -> tuple[Finding, ...]:
    """Problems before notes."""
    judged = [feed for feed in feeds if feed.world > 1 and not _idle(feed)]
    return problems_first(finding for feed in judged for check in _checks(feed) for finding in check(feed))


def _checks(feed: Feed) -> tuple[Callable[[Feed], Iterator[Finding]], ...]:
    return (check_leaves,) if feed.has_leaves else CHECKS


def _idle(feed: Feed) -> list[int]:
    """Ranks that did not draw from it, and should have."""
    return [rank for rank in drawers(feed) if rank not in feed.facts]


def _each_once(findings: Sequence[Finding]) -> list[Finding]:
    """A fault of Leaves that both loaders and steps show."""
    return list({(finding.check, finding.seen): finding for finding in findings}.values())


def problems_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Notes after them."""
    return tuple(sorted(findings, key=lambda finding: finding.severity != "problem"))


def _row(feed: Feed, epoch: Epoch) -> Row:
    fewest, most = epoch.steps
    repeated = repeats(feed, epoch)
    known = feed.samples is not None and feed.by != "content" and epoch.ended(feed.world)
    extra, missing = repeated.unintended, max(0, (feed.samples or 0) - len(epoch.counts)) if known else None
    if (want := promised(feed, epoch)) is not None:
        extra, missing = (epoch.counts - want).total(), (want - epoch.counts).total() if ended(feed, epoch) else None
    return Row(
        loader=feed.name,
        epoch=epoch.number + 1,
        steps=str(most) if fewest == most else f"{fewest} to {most}",
        drawn=epoch.drawn,
        distinct=len(epoch.counts),
        repeated=extra,
        padding=0 if feed.has_leaves else repeated.padding,
        missing=missing,
        by=feed.by,
    )


def _not_judged(
    ranks: Mapping[int, RankRecords], feeds: Sequence[Feed], steps: Sequence[LeafStep], only_training: bool
) -> list[str]:
    said = []
    if not ranks:
        return ["no rank has iterated a DataLoader or DistributedSampler"]
    world = world_of(ranks)
    if missing_ranks := absent(ranks):
        said.append(f"{names(missing_ranks)} of {world} left no records: on another host, or drew nothing")
    if world == 1:
        said.append("one rank has no other rank to share samples with: duplicates and missing samples need several")
    for feed in feeds:
        if idle := _idle(feed):
            said.append(f"{feed.name}: {names(idle)} did not draw from it")
        elif True in feed.fact("replacement"):
            said.append(f"{feed.name}: it draws with replacement, so repeated samples are meant")
        elif feed.by == "not known":
            said.append(f"{feed.name}: {_UNCOMPARED}")
        elif feed.by == "own index":
            said.append(f"{feed.name}: {_OWN_DATA}")
        elif feed.samples is None or feed.by == "content":
            said.append(f"{feed.name}: samples have no indices, so missing samples cannot be known")
    if any(leaf.share is None for step in steps for leaf in step.leaves):
        said.append("which samples some leaves had: they were not drawn by a loader with a Leaves, nor asked of one")
    if only_training:
        said += [f"{name}: no backward pass came between its draws" for name in unwatched(ranks)]
    return said


def _cost(ranks: Mapping[int, RankRecords]) -> Cost:
    latest = [records.of("cost")[-1] for records in ranks.values() if records.of("cost")]
    costs = [Cost(row["seconds"], row["span"], row["draws"]) for row in latest]
    return max(costs, key=lambda cost: cost.share, default=Cost(0.0, 0.0, 0))


_HEADER = ("loader", "epoch", "steps", "drawn", "distinct", "repeated", "padding", "missing", "by")


def show(report: Report) -> None:
    """Prints the table, the findings, what watching has cost, and the verdict as the last line."""
    rows = [
        (
            *map(str, (row.loader, row.epoch, row.steps, row.drawn, row.distinct, row.repeated, row.padding)),
            "-" if row.missing is None else str(row.missing),
            row.by,
        )
        for row in report.rows
    ]
    if rows:
        print_table(f"data feed of {counted(report.world, 'rank')}", _HEADER, rows)
    show_findings(report.findings, report.not_judged)
    print(verdict(report))


def verdict(report: Report) -> str:
    """One line: how many problems, and the cost."""
    found = len(problems(report.findings))
    cost = report.cost
    watching = f"; writing it down took {cost.share:.2%} of the run between draws" if cost.span else ""
    if not report.rows and not report.leaf_steps and not found:
        return f"nothing was judged{watching}"
    steps = f" in {counted(report.leaf_steps, 'step')} of micro-batches" if report.leaf_steps else ""
    return f"{counted(found, 'problem') if found else 'no problems'}{steps}{watching}"
