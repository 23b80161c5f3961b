"""Numbers with units, as people type them: 70B, 400GB/s, 100Gb/s, 25MB, 80GB, 10us, 50%. SI: 1 GB is 10**9 bytes.

Every parser takes text and returns a number, or raises UnitError with one line that names the text and the way out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

Parser = Callable[[str], float]

WIRE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
_SI = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_SIZES = {f"{prefix}B": scale for prefix, scale in {**_SI, "K": 1e3, **_BINARY}.items()}
_RATES = {
    **{f"{prefix}B/s": scale for prefix, scale in {**_SI, "K": 1e3, **_BINARY}.items()},
    **{f"{prefix}b{per}": scale / 8 for prefix, scale in {**_SI, "K": 1e3}.items() for per in ("/s", "ps", "it/s")},
}
_LEAST, _MOST = 1e-30, 1e30  # products of a few such numbers are still finite
_LONGEST_RANGE = 1024
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*")


class UnitError(ValueError):
    """Text that is not a number of this kind; the message says what to type."""


def _split(text: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UnitError(f"'{text}' is not a number")
    value = float(match.group(1).replace("_", ""))
    if not math.isfinite(value):
        raise UnitError(f"'{text}' is too large")
    return value, match.group(2)


def _positive(value: float, text: str) -> float:
    if not value > 0:
        raise UnitError(f"'{text}' must be above 0")
    if not _LEAST <= value <= _MOST:
        raise UnitError(f"'{text}' must be from {_LEAST:g} to {_MOST:g}")
    return value


def _scaled(text: str, units: Mapping[str, float], examples: str) -> float:
    value, unit = _split(text)
    if unit not in units:
        raise UnitError(f"'{text}' has no unit" if not unit else f"'{text}' has unit '{unit}': type one of {examples}")
    return _positive(value * units[unit], text)


def count(text: str) -> float:
    """A number of things: 70B, 4M, 1_048_576, 7e9."""
    return _scaled(text, _COUNTS, "70B, 4M, 128K or a plain number")


def whole(text: str) -> int:
    """A whole number of things, at least 1."""
    value = count(text)
    if value != int(value):
        raise UnitError(f"'{text}' must be a whole number")
    return int(value)


def wholes(text: str) -> tuple[int, ...]:
    """Whole numbers and ranges of them, separated by commas: 1,8,64 or 1-8,16."""
    return tuple(number for word in text.split(",") for number in _range(word))


def _range(text: str) -> range:
    first, dash, last = text.partition("-")
    if not (dash and first and last):
        return range(number := whole(text), number + 1)
    begin, end = whole(first), whole(last)
    if not begin <= end < begin + _LONGEST_RANGE:
        raise UnitError(f"'{text}' must go up, by less than {_LONGEST_RANGE}")
    return range(begin, end + 1)


def amount(text: str) -> float:
    """A plain number above 0: 3e-4, 989."""
    value, unit = _split(text)
    if unit:
        raise UnitError(f"'{text}' must be a plain number")
    return _positive(value, text)


def share(text: str) -> float:
    """A part of one: 0.5 or 50%."""
    value, unit = _split(text)
    if unit not in ("", "%"):
        raise UnitError(f"'{text}' must be like 0.5 or 50%")
    part = value / 100 if unit else value
    if not 0 < part <= 1:
        raise UnitError(f"'{text}' must be above 0 and at most 1 (100%)")
    return _positive(part, text)


def bandwidth(text: str) -> float:
    """Bytes per second. A unit is needed, because data sheets of ports count bits and those of nodes bytes."""
    value, unit = _split(text)
    if not unit:
        said = f"{value:g}"
        raise UnitError(f"'{text}' has no unit: type {said}GB/s for gigabytes or {said}Gb/s for gigabits per second")
    return _scaled(text, _RATES, "400GB/s, 100Gb/s, 950MB/s")


def size(text: str) -> float:
    """Bytes: 25MB, 80GB, 16GiB, 512B."""
    value, unit = _split(text)
    if not unit:
        raise UnitError(f"'{text}' has no unit: type {value:g}MB, {value:g}GB or {value:g}B")
    return _scaled(text, _SIZES, "25MB, 80GB, 16GiB, 512B")


def _size_in(unit: str) -> Parser:
    def parse(text: str) -> float:
        value, given = _split(text)
        return (size(text) if given else _positive(value * _SIZES[unit], text)) / _SIZES[unit]

    return parse


gigabytes = _size_in("GB")
gigabytes.__doc__ = "Gigabytes: 80, 80GB, 80000MB."
megabytes = _size_in("MB")
megabytes.__doc__ = "Megabytes: 25, 25MB."


def seconds(text: str) -> float:
    """A time: 3.5s, 20ms, 10us."""
    return _scaled(text, _SECONDS, "3.5s, 20ms, 10us")


def microseconds(text: str) -> float:
    """Microseconds: 10, 10us, 0.01ms."""
    value, unit = _split(text)
    return seconds(text) / 1e-6 if unit else _positive(value, text)


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser of names."""

    def parse(text: str) -> str:
        if text not in choices:
            raise UnitError(f"invalid value '{text}' (expected one of: {', '.join(choices)})")
        return text

    return parse


def several_of(*choices: str) -> Callable[[str], tuple[str, ...]]:
    """A parser of names between commas."""
    one = one_of(*choices)
    return lambda text: tuple(dict.fromkeys(one(name.strip()) for name in text.split(",")))


wire = one_of(*WIRE_BYTES)
