"""The translator: its subset word for word, what it refuses, and the planner's formulas in a browser against Python."""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest
from ringdp.tools.pages import javascript, wall_page
from ringdp.tools.pages.document import Tab, document
from ringdp.tools.planner import formulas


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
