"""Answers as text: tables by rich in a terminal, plain columns elsewhere."""

from __future__ import annotations

from typing import Any

from ringdp.text.table import columns, print_rich_table
from ringdp.text.terminal import in_terminal, print_styled
from ringdp.text.units import byte_size, scaled, seconds
from ringdp.tools.planner.question import Answer, Table


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
        return byte_size(value)
    if unit in ("FLOP", "FLOP/s"):
        return scaled(value, unit)
    if unit == "s":
        return seconds(value)
    if unit == "share":
        return f"{100 * value:.1f} %"
    return f"{_number(value)} {unit}".rstrip()


def _number(value: float) -> str:
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def show(title: str, answer: Answer) -> None:
    """Prints an answer as suits standard output."""
    if in_terminal():
        _show_rich(title, answer)
    else:
        print("\n".join(_plain(title, answer)))


def _figures(answer: Answer) -> list[tuple[str, str, str]]:
    return [(f.name, text_of(f.value, f.unit), f.source) for f in answer.figures]


def _cells(table: Table) -> list[list[str]]:
    return [[text_of(v, unit) for v, (_, unit) in zip(row, table.columns, strict=True)] for row in table.rows]


def _plain(title: str, answer: Answer) -> list[str]:
    lines = [title] if title else []
    lines += ["  " + line for line in columns(_figures(answer))]
    for table in answer.tables:
        heads = [name for name, _ in table.columns]
        lines += [table.title, *("  " + line for line in columns([heads, *_cells(table)]))]
    lines += [f"warning: {sentence}" for sentence in answer.warnings]
    lines += [f"-> {sentence}" for sentence in answer.advice]
    for heading, section in answer.sections:
        lines += ["", *_plain(heading, section)]
    return lines


def _show_rich(title: str, answer: Answer) -> None:
    if title:
        print_styled((title, "bold"))
    if answer.figures:
        print_rich_table("", ("figure", "value", "from"), _figures(answer))
    for table in answer.tables:
        print_rich_table(table.title, [name for name, _ in table.columns], _cells(table))
    for sentence in answer.warnings:
        print_styled(("warning:", "yellow"), (f" {sentence}", ""))
    for sentence in answer.advice:
        print_styled(("->", "green"), (f" {sentence}", ""))
    for heading, section in answer.sections:
        print()
        _show_rich(heading, section)
