"""Small charts as SVG text, in the colours of the page's theme. The caller describes each in words."""

from __future__ import annotations

import html
from dataclasses import dataclass

WIDTH, HEIGHT, ROW = 1000, 300, 34
LEFT, RIGHT, TOP, BOTTOM = 150, 980, 40, 265
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
    """Lines over linear axes that begin at the smallest values."""
    points = [point for one in series for point in one.points]
    x_low, x_high = _range([x for x, _ in points])
    y_low, y_high = _range([y for _, y in points])

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = point
        return (
            LEFT + (RIGHT - LEFT) * (x - x_low) / (x_high - x_low),
            BOTTOM - (BOTTOM - TOP) * (y - y_low) / (y_high - y_low),
        )

    drawn = [_y_tick(place((x_low, y))[1], y) for y in _ticks(y_low, y_high)]
    drawn += [_text(place((x, y_low))[0], BOTTOM + 20, f"{x:g}", "middle") for x in (x_low, x_high)]
    drawn.append(_text((LEFT + RIGHT) / 2, BOTTOM + 20, x_name, "middle"))
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
    ends = {0.0: "start", 0.5: "middle", 1.0: "end"}
    drawn += [_text(x_of(s * end), height - 10, f"{1e3 * s * end:.3g} ms", anchor) for s, anchor in ends.items()]
    drawn += [_key(place, name, colour) for place, (name, colour) in enumerate(keys.items())]
    return _svg(drawn, height, described)


def _range(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float) -> list[float]:
    return [low + (high - low) * share / 4 for share in range(5)]


def _svg(drawn: list[str], height: float, described: str) -> str:
    label = html.escape(described, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _y_tick(y: float, value: float) -> str:
    return _rule(LEFT, y, RIGHT, y, "var(--line)") + _text(LEFT - 8, y + 4, f"{value:.4g}", "end")


def _line(points: list[tuple[float, float]], number: int) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{COLOURS[number]}" stroke-width="2"/>'


def _markers(points: list[tuple[float, float]], number: int) -> str:
    return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{COLOURS[number]}"/>' for x, y in points)


def _key(place: int, name: str, colour: int) -> str:
    x = LEFT + 200 * place
    return f'<rect x="{x}" y="12" width="14" height="10" fill="{COLOURS[colour]}"/>' + _text(x + 20, 22, name, "start")
