"""What a question to the planner is answered with: figures with units and sources, tables, advice and warnings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
        """Values by name under "results"; units and sources beside them, in the same order."""
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
