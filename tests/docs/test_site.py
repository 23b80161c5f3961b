"""The site builds without a warning and shows every public name; docstrings come out as they were meant.

Every link in a document leads to a file and a heading that exist; index.md leads to every page.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ringdp
from pages import DOCS, ROOT, generator_named

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


LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
PAGES = sorted(DOCS.glob("*.md"))
OTHERS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("csrc/**/README.md")), ROOT / "benchmarks/README.md"]


def anchors(path: Path) -> set[str]:
    """The names of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for file, heading in LINK.findall(page.read_text()):
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (heading and heading not in anchors(target)):
            found.append(f"{file}#{heading}")
    return found


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# One thing, `two` (three)\n")
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](other.md#one-thing-two-three) [b](#here) [c](other.md#gone) [d](gone.md) [e](#gone)\n")
    assert broken(page) == ["other.md#gone", "gone.md#", "#gone"]


def test_index_leads_to_every_page():
    linked = {file for file, _ in LINK.findall((DOCS / "index.md").read_text())}
    assert {page.name for page in PAGES} - {"index.md"} <= linked
