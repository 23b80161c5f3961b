"""What the planner is asked and what it answers.

A Kind of question has inputs with units and defaults, the function that answers it, and an example: the command line,
input files, help, JSON and text are made from it. An Answer has figures with units and sources, tables, advice and
warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ringdp.tools.planner.units import UnitError


@dataclass(frozen=True)
class Figure:
    """One result. unit: of `value` (bytes, s, ranks, ... or "" for yes/no and pure numbers); source: its formula."""

    name: str
    value: Any
    unit: str = ""
    source: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of values under (name, unit) columns."""

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Answer:
    """advice: what to do. warnings: what holds against it. sections: answers under a heading each."""

    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    advice: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    sections: tuple[tuple[str, Answer], ...] = ()

    def __getitem__(self, name: str) -> Any:
        """The value of a figure."""
        return next(figure.value for figure in self.figures if figure.name == name)

    def as_json(self) -> dict[str, Any]:
        """Values by name under "results"; units and sources separately, in the same order."""
        return {
            "results": {figure.name: figure.value for figure in self.figures},
            "figures": [{"figure": f.name, "unit": f.unit, "source": f.source} for f in self.figures],
            "tables": [
                {"title": t.title, "columns": [list(c) for c in t.columns], "rows": [list(r) for r in t.rows]}
                for t in self.tables
            ],
            "advice": list(self.advice),
            "warnings": list(self.warnings),
            "sections": {title: answer.as_json() for title, answer in self.sections},
        }


class InputError(ValueError):
    """A question that cannot be answered as it was asked; the message is one line that says what to type."""

    def __init__(self, message: str) -> None:
        """Names that a file gives may contain anything: what a terminal does not print is escaped."""
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in message))


@dataclass(frozen=True)
class Input:
    """One input. default: text as a person would type it, "" when the input may be left out, None when it may not."""

    name: str
    parse: Callable[[str], Any]
    help: str
    default: str | None = None

    @property
    def option(self) -> str:
        """On the command line."""
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True)
class Kind:
    """answer: is called with every input by name; what was left out and has no default is None."""

    name: str
    help: str
    inputs: tuple[Input, ...]
    answer: Callable[..., Answer]
    example: str

    def values(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Parsed inputs from text. InputError names what is unknown, missing or no such number."""
        known = {entry.name: entry for entry in self.inputs}
        for name in given:
            if name not in known:
                raise InputError(f"{self.name} has no input '{name}': it has {', '.join(known)}")
        missing = [entry.option for entry in self.inputs if entry.default is None and entry.name not in given]
        if missing:
            raise InputError(f"{self.name} needs {', '.join(missing)}; for example: ringdp plan {self.example}")
        return {entry.name: _parsed(entry, given.get(entry.name, entry.default)) for entry in self.inputs}

    def ask(self, given: Mapping[str, str]) -> Answer:
        """The answer to inputs given as text."""
        return self.answer(**self.values(given))


def _parsed(entry: Input, text: str | None) -> Any:
    if not text:
        if entry.default == "" and text == "":
            return None
        raise InputError(f"{entry.option}: a value is needed ({entry.help})")
    try:
        return entry.parse(text)
    except UnitError as error:
        raise InputError(f"{entry.option}: {error}") from None
