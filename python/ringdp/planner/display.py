"""Answers as text: tables by rich in a terminal, plain columns elsewhere."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

from ringdp.planner.answer import Answer, Table

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def text_of(value: Any, unit: str) -> str:
    """A value for people: 279.73 GB, 0.697 s, 16.7 %, yes, none."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        nested = any(isinstance(item, list | tuple) for item in value)
        return ("; " if nested else " ").join(text_of(item, unit) for item in value)
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ", ".join(f"{name} {text_of(item, unit)}" for name, item in value.items())
    if unit == "bytes":
        return _scaled(value, "B")
    if unit in ("FLOP", "FLOP/s"):
        return _scaled(value, unit)
    if unit == "s":
        return _seconds(value)
    if unit == "share":
        return f"{100 * value:.1f} %"
    return f"{_number(value)} {unit}".rstrip()


def _scaled(value: float, unit: str) -> str:
    for scale, prefix in _PREFIXES:
        if abs(value) >= scale:
            return f"{value / scale:.2f} {prefix}{unit}"
    return f"{value:g} {unit}"


def _seconds(value: float) -> str:
    if value >= 1 or value == 0:
        return f"{value:,.2f} s"
    scale, unit = (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{value * scale:.3g} {unit}"


def _number(value: float) -> str:
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def show(title: str, answer: Answer) -> None:
    """Prints an answer as suits standard output."""
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        _show_rich(title, answer)
    else:
        print("\n".join(_plain(title, answer)))


def _figures(answer: Answer) -> list[tuple[str, str, str]]:
    return [(f.name, text_of(f.value, f.unit), f.source) for f in answer.figures]


def _cells(table: Table) -> list[list[str]]:
    return [[text_of(v, unit) for v, (_, unit) in zip(row, table.columns, strict=True)] for row in table.rows]


def _plain(title: str, answer: Answer) -> list[str]:
    lines = [title] if title else []
    lines += ["  " + line for line in _columns(_figures(answer))]
    for table in answer.tables:
        heads = [name for name, _ in table.columns]
        lines += [table.title, *("  " + line for line in _columns([heads, *_cells(table)]))]
    lines += [f"warning: {sentence}" for sentence in answer.warnings]
    lines += [f"-> {sentence}" for sentence in answer.advice]
    for heading, section in answer.sections:
        lines += ["", *_plain(heading, section)]
    return lines


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _show_rich(title: str, answer: Answer) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    if title:
        console.print(f"[bold]{escape(title)}[/bold]")
    if answer.figures:
        console.print(_rich_table(None, ("figure", "value", "from"), _figures(answer)))
    for table in answer.tables:
        console.print(_rich_table(table.title, [name for name, _ in table.columns], _cells(table)))
    for sentence in answer.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(sentence)}")
    for sentence in answer.advice:
        console.print(f"[green]->[/green] {escape(sentence)}")
    for heading, section in answer.sections:
        console.print()
        _show_rich(heading, section)


def _rich_table(title: str | None, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    from rich.markup import escape
    from rich.table import Table as RichTable

    table = RichTable(title=title and escape(title), title_justify="left")
    for head in heads:
        table.add_column(head)
    for row in rows:
        table.add_row(*map(escape, row))
    return table
