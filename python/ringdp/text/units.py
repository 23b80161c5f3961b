"""Numbers with nouns and units for people, in SI's prefixes."""

from __future__ import annotations

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def counted(number: int, noun: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
