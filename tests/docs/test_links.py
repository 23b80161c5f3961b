"""Every link in a document leads to a file and a heading that exist; index.md leads to every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import DOCS, ROOT

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
