"""Checks of arguments. A ValueError names the argument, its value and what is expected. what: "survive: patience"."""

from __future__ import annotations

from collections.abc import Callable


def check_whole_number(what: str, value: object, least: int | None = None) -> None:
    """Of at least so much. A bool is none."""
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"{what}={value!r}, must be a whole number{bound}")


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
