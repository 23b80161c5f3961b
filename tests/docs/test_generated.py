"""Generated pages are current: errata.md with a test for each erratum, settings.md with a row for each setting."""

from __future__ import annotations

import pytest
import ringdp
from pages import DOCS, generator_named
from ringdp.tools.planner.errata import ERRATA

pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def errata_generator():
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
