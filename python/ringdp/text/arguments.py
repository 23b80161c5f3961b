"""Checks of arguments. A ValueError names the argument, its value and what is expected. what: "survive: patience"."""

from __future__ import annotations

from collections.abc import Callable


def check_whole_number(what: str, value: object, least: int | None = None, most: int | None = None) -> None:
    """Of at least so much, and at most. A bool is none."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or (least is not None and value < least) or (most is not None and value > most):
        bounds = [f"{word} {bound}" for word, bound in (("at least", least), ("at most", most)) if bound is not None]
        raise ValueError(f"{what}={value!r}, must be a whole number{' of ' if bounds else ''}{' and '.join(bounds)}")


def check_number(what: str, value: object, fits: Callable[[float], bool], expected: str) -> None:
    """expected: in words, such as "above 0". A bool is none."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not fits(value):
        raise ValueError(f"{what}={value!r}, must be {expected}")


def check_flag(what: str, value: object) -> None:
    """Nothing else is taken for one of both."""
    if not isinstance(value, bool):
        raise ValueError(f"{what}={value!r}, must be True or False")


def check_function(what: str, value: object) -> None:
    """Or None, where it is left out."""
    if value is not None and not callable(value):
        raise ValueError(f"{what}={value!r}, must be a function")
