"""An audit's report for people."""

from __future__ import annotations

from ringdp.attach.finding import problems
from ringdp.attach.show import show_findings
from ringdp.feed.judge import Report
from ringdp.text.table import print_table
from ringdp.text.units import counted

_HEADER = ("loader", "epoch", "steps", "drawn", "distinct", "repeated", "padding", "missing", "by")


def show(report: Report) -> None:
    """Prints the table, the findings, what watching has cost, and the verdict as the last line."""
    rows = [
        (row.loader, str(row.epoch), row.steps, str(row.drawn), str(row.distinct), str(row.repeated), str(row.padding))
        + ("-" if row.missing is None else str(row.missing), row.by)
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
    return f"{found or 'no'} problem{'s' if found != 1 else ''}{watching}"
