"""Arguments of the command line: errors in one line, and numbers that are checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line; parsers of sub-commands are of this class, too."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """No argument is left over: the parser that does not know one refuses it, with its own usage."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Ends with status 2."""
        usage = " ".join(self.format_usage().split())
        self.exit(2, f"{self.prog}: {message}; {usage}\n")


Number = TypeVar("Number", int, float)


def positive(kind: type[Number], most: Number | None = None) -> Callable[[str], Number]:
    """For argparse: a number above 0 and of at most `most`, or an error that names the value and what is accepted."""

    def parse(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = kind(0)
        if not 0 < value < float("inf") or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"invalid value '{text}' (expected a {accepted})")
        return value

    if kind is int:
        accepted = "whole number of 1 or more" if most is None else f"whole number from 1 to {most}"
    else:
        accepted = "number above 0" if most is None else f"number above 0, up to {most:g}"
    return parse
