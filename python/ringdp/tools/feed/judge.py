"""From what ranks have drawn to findings and a table: the whole of an audit but for collecting and printing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ringdp.text.table import print_table
from ringdp.text.units import counted, names
from ringdp.tools.attach.finding import Finding, problems, show_findings
from ringdp.tools.attach.records import RankRecords, absent, world_of
from ringdp.tools.feed import checks
from ringdp.tools.feed.draws import Epoch, Feed, feeds_of, repeats, unwatched

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
        said.append("one rank has no other rank to share samples with: duplicates and missing samples need several")
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
    if not report.rows:
        return f"nothing was judged{watching}"
    return f"{counted(found, 'problem') if found else 'no problems'}{watching}"
