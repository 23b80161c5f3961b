"""Numbers with nouns and units for people, in SI's prefixes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sized
from typing import TypeVar

Value = TypeVar("Value", bound=Hashable)

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def counted(number: int, noun: str) -> str:
    """1 rank, 2 ranks, 1,024 batches."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Of a regular noun: ranks, batches, passes."""
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def names(numbers: Iterable[int], noun: str = "rank") -> str:
    """'rank 3' or 'ranks 0, 1, 2'; many are cut short."""
    listed = sorted(numbers)
    shown = ", ".join(map(str, listed[:8])) + (f", ... ({len(listed)} of them)" if len(listed) > 8 else "")
    return f"{noun if len(listed) == 1 else plural(noun)} {shown}"


def ranks_by_value(values: Mapping[int, Value]) -> dict[Value, list[int]]:
    """The ranks that have each value, from the value of each rank."""
    ranks: dict[Value, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return ranks


def agreeing(subjects: Sized, one: str, several: str) -> str:
    """The word that fits so many subjects: has or have, it or them."""
    return one if len(subjects) == 1 else several


def scaled(value: float, unit: str) -> str:
    """12 FLOP, 440.00 PFLOP."""
    for scale, prefix in _PREFIXES:
        if abs(value) >= scale:
            return f"{value / scale:.2f} {prefix}{unit}"
    return f"{value:g} {unit}"


def byte_size(value: float) -> str:
    """Bytes: 279.73 GB."""
    return scaled(value, "B")


def seconds(value: float) -> str:
    """3.48 s, 697 ms, 62.5 us."""
    if value >= 1 or value == 0:
        return f"{value:,.2f} s"
    scale, unit = (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{value * scale:.3g} {unit}"


def ms(value: float) -> str:
    """Seconds as 1234.50 ms, for columns of numbers."""
    return f"{1e3 * value:.2f} ms"
