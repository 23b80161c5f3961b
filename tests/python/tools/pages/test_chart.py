"""Charts as SVG: places by hand, words for who cannot see them, escaped names."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from ringdp.tools.pages.chart import BOTTOM, LEFT, RIGHT, TOP, Series, Span, bars, lines


def test_a_line_fills_its_axes() -> None:
    drawn = ElementTree.fromstring(lines([Series("loss", [(1, 4.0), (2, 5.0), (3, 3.0)])], "falls", "step"))
    path = drawn.find("polyline").get("points")  # type: ignore[union-attr]
    points = [tuple(map(float, point.split(","))) for point in path.split()]  # type: ignore[union-attr]
    assert points == [(LEFT, (TOP + BOTTOM) / 2), ((LEFT + RIGHT) / 2, TOP), (RIGHT, BOTTOM)]
    assert drawn.get("role") == "img" and drawn.get("aria-label") == "falls"


def test_markers_have_no_line() -> None:
    drawn = lines([Series("a", [(0, 1.0), (1, 2.0)], line=False)], "", "x")
    assert drawn.count("<circle") == 2 and "<polyline" not in drawn


@pytest.mark.parametrize(
    ("values", "y_labels"),
    [
        ((4.204, 3.804), ["3.9", "4.0", "4.1", "4.2"]),
        ((86440, 70123), ["75,000", "80,000", "85,000"]),
        ((1e18, 1e18), ["990.00 P", "995.00 P", "1000.00 P", "1005.00 P", "1010.00 P"]),
        ((2e-7, 0.0), ["0.00000000", "0.00000005", "0.00000010", "0.00000015", "0.00000020"]),
    ],
)
def test_axes_have_round_numbers(values: tuple[float, float], y_labels: list[str]) -> None:
    drawn = ElementTree.fromstring(lines([Series("a", list(enumerate(values, 1)))], "", "step"))
    texts = [text.text for text in drawn.iter("text")]
    assert texts == [*y_labels, "1", "2", "step", "a"]
    many = [(float(x), float(x)) for x in range(1, 62)]
    texts = [text.text for text in ElementTree.fromstring(lines([Series("a", many)], "", "step")).iter("text")]
    assert texts == ["20", "40", "60", "20", "40", "60", "step", "a"]


@pytest.mark.parametrize("points", [[(1.0, 5.0)], [(1.0, 5.0), (2.0, 5.0)], [(1.0, 1e18)], [(1.0, 5e-324), (2.0, 0.0)]])
def test_a_flat_line_is_drawn_in_the_middle(points: list[tuple[float, float]]) -> None:
    path = re.search(r'points="([^"]*)"', lines([Series("a", points)], "", "x"))
    assert path is not None
    assert {float(point.split(",")[1]) for point in path.group(1).split()} == {(TOP + BOTTOM) / 2}


def test_bars_by_row_and_time() -> None:
    drawn = ElementTree.fromstring(
        bars(["first", "second"], [Span(0, 0.0, 0.5, 0), Span(1, 0.5, 1.0, 1)], {"a": 0, "b": 1}, "two", {"mark": 0.25})
    )
    boxes = [rect for rect in drawn.iter("rect") if rect.get("height") == "24"]
    half = (RIGHT - LEFT) / 2
    assert [(float(b.get("x", 0)), float(b.get("width", 0))) for b in boxes] == [(LEFT, half), (LEFT + half, half)]
    assert float(boxes[1].get("y", 0)) > float(boxes[0].get("y", 0))
    texts = [text.text for text in drawn.iter("text")]
    assert {"first", "second", "a", "b", "mark", "0 ms", "200 ms", "1,000 ms"} <= set(texts)
    rule = drawn.find("line")
    assert rule is not None and float(rule.get("x1", 0)) == LEFT + half / 2


def test_names_are_escaped() -> None:
    drawn = bars(["<b>"], [Span(0, 0.0, 0.0, 0)], {}, 'say "x"', {})
    assert "&lt;b&gt;" in drawn and 'aria-label="say &quot;x&quot;"' in drawn
