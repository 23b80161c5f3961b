"""Numbers on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def positive(kind: type[Number], most: Number | None = None) -> Callable[[str], Number]:
    """For argparse: a number above 0 and of at most `most`, or an error that names the value and what is accepted."""

    def parse(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = kind(0)
        if not 0 < value < float("inf") or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"'{text}' is no {accepted}")
        return value

    if kind is int:
        accepted = "whole number of 1 or more" if most is None else f"whole number from 1 to {most}"
    else:
        accepted = "number above 0" if most is None else f"number above 0, up to {most:g}"
    return parse
