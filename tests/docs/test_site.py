"""The site builds without a warning and shows every public name; generated pages are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ringdp
from pages import DOCS, ROOT, generator_named
from ringdp.tools.planner.errata import ERRATA

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


# Generated pages are current: errata.md with a test for each erratum, settings.md with a row for each setting.


@pytest.fixture(scope="module")
def errata_generator():
    pytest.importorskip("numpy")  # with which some errata are computed
    return generator_named("generate_errata")


@pytest.fixture(scope="module")
def errata_page(errata_generator):
    return errata_generator.page()


def test_errata_are_current(errata_page):
    assert errata_page == (DOCS / "errata.md").read_text(), "python docs/generate_errata.py > docs/errata.md"


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda erratum: erratum.number)
def test_every_erratum_has_its_number_and_its_tests(errata_generator, errata_page, erratum):
    section = errata_page.split(f"## {erratum.number}: ")[1].split("\n## ")[0]
    assert section.startswith(erratum.claimed) and "none" not in section
    tests = errata_generator.tests_of(erratum.number)
    assert tests and all(f"`{name}`" in section for name in tests)


@pytest.fixture(scope="module")
def settings_generator():
    return generator_named("generate_settings")


def test_settings_are_current(settings_generator):
    assert settings_generator.page() == (DOCS / "settings.md").read_text(), (
        "python docs/generate_settings.py > docs/settings.md"
    )


def test_every_setting_has_one_row(settings_generator):
    page = settings_generator.page()
    for row in ringdp._C.setting_table():
        assert page.count(f"| `{row['variable']}` |") == 1
        assert row["help"].replace("|", "\\|") in page


@pytest.mark.parametrize(
    ("value", "field", "shown"),
    [
        ("131072", "one_shot_bytes_of_two", "`131072` (128 KiB)"),
        ("68719476736", "heap_bytes", "`68719476736` (64 GiB)"),
        ("0", "slot_bytes", "`0`"),
        ("50000", "direct_bytes", "`50000`"),
        ("5000", "unreachable_ms", "`5000`"),
        ("", "socket_ifname", "none"),
    ],
)
def test_defaults_have_units(settings_generator, value, field, shown):
    assert settings_generator.in_units(value, field) == shown
