"""What pages are made of: parts, charts, and formulas translated into JavaScript."""

from __future__ import annotations

import inspect
import json
import random
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ringdp.tools.pages import javascript, wall_page
from ringdp.tools.pages.chart import BOTTOM, LEFT, RIGHT, TOP, Series, Span, bars, lines
from ringdp.tools.pages.document import Tab, asset, data, document, write
from ringdp.tools.planner import formulas

TABS = [Tab("one", "First & <b>", "<p>body one</p>"), Tab("two", "Second", "<p>body two</p>")]


def test_data_cannot_end_its_element() -> None:
    value = {"text": "</script><b>", "numbers": [1, 2.5]}
    text = data("given", value)
    assert text.count("</script>") == 1 and text.endswith("</script>")
    assert json.loads(text[text.index(">") + 1 : -len("</script>")]) == value


def test_titles_are_escaped() -> None:
    assert "<title>a &lt;b&gt;</title>" in document("a <b>", TABS, [])


def test_one_tab_has_no_tab_bar() -> None:
    assert '<div role="tablist"' in document("two", TABS, [])
    assert '<div role="tablist"' not in document("one", TABS[:1], [])


def test_assets_are_the_package_s() -> None:
    assert asset("theme.js").startswith('"use strict"')
    with pytest.raises(FileNotFoundError):
        asset("none.js")


def test_tabs_by_click_and_by_key(opened: Any) -> None:
    page = opened(document("tabs", TABS, []))
    assert page.text("tab-one") == "First & <b>"
    assert page.at("one").is_displayed() and not page.at("two").is_displayed()
    page.click("tab-two")
    assert page.at("two").is_displayed() and not page.at("one").is_displayed()
    page.press("ARROW_RIGHT")
    assert page.focused() == "tab-one" and page.at("one").is_displayed()
    page.press("ARROW_LEFT")
    assert page.focused() == "tab-two" and page.at("tab-two").get_attribute("aria-selected") == "true"
    assert page.violations() == []


def test_an_anchor_opens_its_tab(opened: Any) -> None:
    page = opened(document("tabs", TABS, []))
    page.driver.get(page.driver.current_url + "#two")
    page.driver.refresh()
    assert page.at("two").is_displayed()


def test_a_page_is_written(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "b.html"
    assert write("ringdp x", file, "ä" * 1000) == 0
    assert file.read_text(encoding="utf-8") == "ä" * 1000
    assert capsys.readouterr().out == f"{file}: 2 kB, one file; open it in a browser\n"


def test_a_folder_is_no_file(tmp_path: Path, capsys: Any) -> None:
    assert write("ringdp x", tmp_path, "") == 2
    assert capsys.readouterr().err == f"ringdp x: cannot write {tmp_path}: Is a directory\n"


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "typo" / "b.html"
    assert write("ringdp x", file, "") == 2
    assert capsys.readouterr().err == f"ringdp x: cannot write {file}: No such file or directory\n"
    assert not file.parent.exists()


# Charts as SVG: places by hand, words for who cannot see them, escaped names.


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


# The translator: its subset word for word, what it refuses, and the planner's formulas in a browser against Python.


def value_of(expression: str) -> str:
    """The JavaScript of one expression over a and b."""
    text = javascript.functions(f"def f(a, b):\n    return {expression}\n\ndef g(a):\n    return a\n")["f"]
    return text.removeprefix("function f(a, b) { return ").removesuffix("; }")


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("a + 2 * b", "(a + (2 * b))"),
        ("(a - 1) / 1e12", "((a - 1) / 1000000000000.0)"),
        ("-a ** 0.5", "(-(a ** 0.5))"),
        ("a ** b ** 2", "(a ** (b ** 2))"),
        ("1 if a <= b else None", "((a <= b) ? 1 : null)"),
        ("not a or a == b and True", "((!a) || ((a === b) && true))"),
        ("max(0, log2(a), g(b))", "Math.max(0, Math.log2(a), g(b))"),
    ],
)
def test_expressions(python: str, expected: str) -> None:
    assert value_of(python) == expected


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("c", "the name c"),
        ("a // b", "FloorDiv"),
        ("a % b", "Mod"),
        ("~a", "Invert"),
        ("a < b < 1", "this comparison"),
        ("a is None", "this comparison"),
        ("'text'", "'text'"),
        ("round(a)", "a call of round"),
        ("g(a=b)", "this call"),
        ("a.b()", "this call"),
        ("[a]", "List"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(expression: str, named: str) -> None:
    with pytest.raises(javascript.Untranslatable, match=f"line 2: {named} cannot be translated"):
        value_of(expression)


@pytest.mark.parametrize(
    "source",
    [
        "def f(a):\n    b = a\n    return b\n",
        "def f(a):\n    return\n",
        "def f(a=1):\n    return a\n",
        "def f(*a):\n    return 1\n",
        "@cache\ndef f(a):\n    return a\n",
    ],
)
def test_other_functions_are_refused(source: str) -> None:
    with pytest.raises(javascript.Untranslatable, match="of f"):
        javascript.functions(source)


def samples(seed: int, each: int) -> list[tuple[str, list[float]]]:
    """Calls of every formula with random arguments that make sense for their names."""
    draw = random.Random(seed)
    calls = []
    for name, function in inspect.getmembers(formulas, inspect.isfunction):
        if function.__module__ == formulas.__name__:
            calls += [(name, [argument(draw, p) for p in inspect.signature(function).parameters]) for _ in range(each)]
    return calls


def argument(draw: random.Random, parameter: str) -> float:
    if parameter in ("ranks", "heads", "seq", "micro_batch", "micro_batches", "dp"):
        return draw.randint(1, 4096)
    if parameter in ("samples", "batch_per_rank"):  # a batch is a fair part of the samples, and not more than all
        return draw.randint(4096, 8192) if parameter == "samples" else draw.randint(64, 4096)
    if parameter == "stage":
        return draw.randint(0, 3)
    if parameter in ("mfu", "share", "hiding_share"):
        return draw.uniform(0.01, 1)
    if parameter.endswith("_bytes") and parameter != "bucket_bytes":
        return draw.choice([0.5, 1, 2, 4, 12])
    return 10 ** draw.uniform(-3, 12)


def test_the_browser_computes_what_python_computes(opened: Any) -> None:
    page = opened(document("formulas", [Tab("none", "none", "")], [wall_page.formulas()]))
    calls = samples(seed=1, each=25)
    found = page.driver.execute_script("return arguments[0].map(([name, given]) => formulas[name](...given))", calls)
    assert len(calls) >= 25 * 30
    for (name, given), value in zip(calls, found, strict=True):
        expected = getattr(formulas, name)(*given)
        assert value == (expected if expected is None else pytest.approx(expected, rel=1e-12)), (name, given)
