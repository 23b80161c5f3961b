"""Small charts as SVG text, in the colours of the page's theme. The caller describes each in words."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from fractions import Fraction

from ringdp.text.units import scaled

WIDTH, HEIGHT, ROW = 1000, 300, 34
LEFT, RIGHT, TOP, BOTTOM = 150, 980, 40, 265
_SLACK = Fraction(1, 10**9)  # of a step: a bound that was rounded has its tick
_LONG = 1e9  # numbers from here on have a prefix: 1.50 G
COLOURS = ("var(--link)", "var(--good)", "var(--bad)", "var(--memory)")


@dataclass(frozen=True)
class Series:
    """Points (x, y) of one line; markers only where `line` is False."""

    name: str
    points: list[tuple[float, float]]
    line: bool = True


@dataclass(frozen=True)
class Span:
    """A bar from `begin` to `end` in row `row`; colour: number in COLOURS."""

    row: int
    begin: float
    end: float
    colour: int


def lines(series: list[Series], described: str, x_name: str) -> str:
    """Lines over linear axes that begin at the smallest values, with ticks at round numbers."""
    points = [point for one in series for point in one.points]
    x_low, x_high = _range([x for x, _ in points])
    y_low, y_high = _range([y for _, y in points])

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = point
        return (
            LEFT + (RIGHT - LEFT) * (x - x_low) / (x_high - x_low),
            BOTTOM - (BOTTOM - TOP) * (y - y_low) / (y_high - y_low),
        )

    drawn = [_y_tick(place((x_low, y))[1], label) for y, label in _ticks(y_low, y_high)]
    whole = all(x == int(x) for x, _ in points)
    drawn += [_text(place((x, y_low))[0], BOTTOM + 20, label, "middle") for x, label in _ticks(x_low, x_high, whole)]
    drawn.append(_text((LEFT + RIGHT) / 2, BOTTOM + 36, x_name, "middle"))
    for number, one in enumerate(series):
        placed = [place(point) for point in one.points]
        drawn.append(_line(placed, number) if one.line else _markers(placed, number))
        drawn.append(_key(number, one.name, number))
    return _svg(drawn, HEIGHT, described)


def bars(rows: list[str], spans: list[Span], keys: dict[str, int], described: str, marks: dict[str, float]) -> str:
    """Horizontal bars over seconds, a row each. keys: names of colours; marks: vertical lines with a name."""
    end = max([span.end for span in spans] + list(marks.values())) or 1.0
    height = TOP + 20 + ROW * len(rows) + 30

    def x_of(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * max(0.0, value) / end

    drawn = [_text(LEFT - 8, TOP + 42 + ROW * number, name, "end") for number, name in enumerate(rows)]
    for span in spans:
        x, y = x_of(span.begin), TOP + 26 + ROW * span.row
        drawn.append(
            f'<rect x="{x:.1f}" y="{y}" width="{max(1.0, x_of(span.end) - x):.1f}" height="24" '
            f'fill="{COLOURS[span.colour]}" stroke="var(--ground)"/>'
        )
    for name, value in marks.items():
        drawn.append(_rule(x_of(value), TOP + 14, x_of(value), height - 30, "var(--ink)"))
        after = value <= end / 2
        drawn.append(_text(x_of(value) + (6 if after else -6), TOP + 12, name, "start" if after else "end"))
    drawn += [_text(x_of(x / 1e3), height - 10, f"{label} ms", "middle") for x, label in _ticks(0.0, 1e3 * end)]
    drawn += [_key(place, name, colour) for place, (name, colour) in enumerate(keys.items())]
    return _svg(drawn, height, described)


def _range(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    largest = max(abs(low), abs(high))
    if high - low > 1e-9 * largest + 1e-300:
        return low, high
    return low - max(0.5, largest / 100), high + max(0.5, largest / 100)


def _ticks(low: float, high: float, whole: bool = False) -> list[tuple[float, str]]:
    """Two to six round numbers between them, each with its label: 80,000 and 85,000, or 4.2 and 4.4."""
    least = (high - low) / 5
    power = math.floor(math.log10(least))
    digit = next((digit for digit in (1, 2, 5) if digit * 10.0**power >= least), 0)
    if digit == 0:
        power, digit = power + 1, 1
    if whole and power < 0:
        power, digit = 0, 1
    step = Fraction(10) ** power * digit
    numbers = range(math.ceil(Fraction(low) / step - _SLACK), math.floor(Fraction(high) / step + _SLACK) + 1)
    values = [float(number * step) for number in numbers]
    return [(x, f"{x:,.{max(0, -power)}f}" if abs(x) < _LONG else scaled(x, "")) for x in values]


def _svg(drawn: list[str], height: float, described: str) -> str:
    label = html.escape(described, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _y_tick(y: float, label: str) -> str:
    return _rule(LEFT, y, RIGHT, y, "var(--line)") + _text(LEFT - 8, y + 4, label, "end")


def _line(points: list[tuple[float, float]], number: int) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{COLOURS[number]}" stroke-width="2"/>'


def _markers(points: list[tuple[float, float]], number: int) -> str:
    return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{COLOURS[number]}"/>' for x, y in points)


def _key(place: int, name: str, colour: int) -> str:
    x = LEFT + 200 * place
    return f'<rect x="{x}" y="12" width="14" height="10" fill="{COLOURS[colour]}"/>' + _text(x + 20, 22, name, "start")
