"""A kind of question: its inputs with units and defaults, the function that answers it, an example.

One value of Kind is what the command line, input files, help, JSON and text are made from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ringdp.planner.answer import Answer
from ringdp.planner.units import UnitError


class InputError(ValueError):
    """A question that cannot be answered as it was asked; the message is one line that says what to type."""


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
