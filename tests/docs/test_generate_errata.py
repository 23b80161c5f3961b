"""errata.md is what the planner computes now, with a test for each."""

from __future__ import annotations

import pytest
from generators import generator_named
from pages import DOCS
from ringdp.planner.errata import ERRATA

pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def generator():
    return generator_named("generate_errata")


@pytest.fixture(scope="module")
def page(generator):
    return generator.page()


def test_the_page_is_not_stale(page):
    assert page == (DOCS / "errata.md").read_text(), "python docs/generate_errata.py > docs/errata.md"


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda erratum: erratum.number)
def test_every_erratum_has_its_number_and_its_tests(generator, page, erratum):
    section = page.split(f"## {erratum.number}: ")[1].split("\n## ")[0]
    assert section.startswith(erratum.claimed) and "none" not in section
    tests = generator.tests_of(erratum.number)
    assert tests and all(f"`{name}`" in section for name in tests)
