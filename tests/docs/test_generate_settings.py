"""settings.md is what the table of settings says now."""

from __future__ import annotations

import pytest
import ringdp
from generators import generator_named
from pages import DOCS


@pytest.fixture(scope="module")
def generator():
    return generator_named("generate_settings")


def test_the_page_is_not_stale(generator):
    assert generator.page() == (DOCS / "settings.md").read_text(), "python docs/generate_settings.py > docs/settings.md"


def test_every_setting_has_one_row(generator):
    page = generator.page()
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
        ("1000", "late_ms", "`1000`"),
        ("", "socket_ifname", "none"),
    ],
)
def test_defaults_have_units(generator, value, field, shown):
    assert generator.in_units(value, field) == shown
