"""The site builds without a warning, and shows every public name; docstrings come out as they were meant."""

from __future__ import annotations

import re

import pytest
import ringdp
from generators import generator_named
from pages import DOCS, ROOT

TOOLS = ("sphinx", "furo", "myst_parser")


def test_it_builds_without_warnings(run_python, tmp_path):
    for tool in TOOLS:
        pytest.importorskip(tool, reason=f"no {tool}: `make docs` installs it")
    folders = ["-d", str(tmp_path / "trees"), "-c", str(DOCS), str(ROOT), str(tmp_path / "site")]
    result = run_python("-m", "sphinx", "-q", "-W", *folders)
    assert result.returncode == 0, result.stderr
    assert "README.html" in (tmp_path / "site/index.html").read_text()
    page = (tmp_path / "site/docs/api.html").read_text()
    for module in (ringdp.checkpoint, ringdp.testing):
        assert all(f'id="{module.__name__}.{name}"' in page for name in module.__all__)


def test_the_reference_has_every_public_name():
    shown = set(re.findall(r"^\.\. auto\w+:: ringdp\.(\w+)", (DOCS / "api.rst").read_text(), re.MULTILINE))
    assert shown == set(ringdp.__all__) - {"__version__"}


@pytest.mark.parametrize(
    ("docstring", "rst"),
    [
        ("The `value` of *x* and a_.", ["The ``value`` of \\*x\\* and a\\_.", ""]),
        ("Before:\n\n    x = 1", ["Before:", "", "::", "", "    x = 1", ""]),
        (
            "Text.\na, b(c): first\nand\n    more\n**d: last",
            ["Text.", "", "``a, b(c)``", "    first", "    and", "    more", "", "``**d``", "    last", ""],
        ),
        (
            "Text:\n    a: first\n        there: more\nAfter.",
            ["Text:", "", "``a``", "    first", "    there: more", "", "After.", ""],
        ),
    ],
)
def test_docstrings_become_restructured_text(docstring, rst):
    assert generator_named("docstrings").rst_of(docstring.splitlines()) == rst
