"""Findings and tables for people: rich in a terminal, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from ringdp.attach.finding import Finding

_COLOURS = {"problem": "red", "note": "yellow"}


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """Prints it."""
    if _in_terminal():
        from rich.console import Console
        from rich.table import Table

        table = Table(*header, title=title, box=None, title_justify="left")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    print(title)
    for line in aligned([header, *rows]):
        print(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines whose columns are as wide as their widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def show_findings(findings: Sequence[Finding], not_judged: Sequence[str]) -> None:
    """Prints each finding, what could not be judged, and as the last line how many problems there are."""
    for finding in findings:
        if _in_terminal():
            from rich.console import Console
            from rich.text import Text

            head, _, rest = str(finding).partition(":")
            Console().print(Text(head, style=_COLOURS[finding.severity]) + Text(f":{rest}"))
        else:
            print(finding)
    for sentence in not_judged:
        print(f"not judged: {sentence}")


def _in_terminal() -> bool:
    return sys.stdout.isatty() and importlib.util.find_spec("rich") is not None
