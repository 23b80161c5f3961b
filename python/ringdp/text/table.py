"""Tables: drawn by rich in a terminal, aligned columns elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringdp.text.terminal import in_terminal

Row = Sequence[str]


def columns(rows: Sequence[Row]) -> list[str]:
    """Lines whose columns are as wide as their widest cell; no lines of no rows."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def print_table(title: str, heads: Row | None, rows: Sequence[Row]) -> None:
    """Prints a table in the form that suits standard output; without heads where they are None."""
    if in_terminal():
        print_rich_table(title, heads, rows)
        return
    print(title)
    for line in columns([*([heads] if heads else []), *rows]):
        print(f"  {line}")


def print_rich_table(title: str, heads: Row | None, rows: Sequence[Row]) -> None:
    """Prints a table at full width, which the terminal wraps."""
    from rich.console import Console

    Console(highlight=False).print(rich_table(title, heads, rows))


def rich_table(title: str, heads: Row | None, rows: Sequence[Row]) -> Any:
    """The one place that hands text to rich's tables, which would take [words] for markup."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    named = heads is not None
    table = Table(title=Text(title) if title else None, title_justify="left", show_header=named, box=SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    for head in heads if named else [""] * (len(rows[0]) if rows else 0):
        table.add_column(Text(head))
    for row in rows:
        table.add_row(*map(Text, row))
    return table
