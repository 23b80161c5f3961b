"""ringdp/planner/errata.py: every erratum is on the page with its number, and each has its test."""

import re
from pathlib import Path

import pytest
from ringdp.planner import errata
from ringdp.planner.kind import InputError

pytest.importorskip("torch")
pytest.importorskip("numpy")


def test_the_page_has_all_eighteen():
    answer = errata.errata(None)
    assert [figure.name for figure in answer.figures] == [f"E{number}" for number in range(1, 19)]
    assert not answer.warnings
    for erratum, row in zip(errata.ERRATA, answer.tables[0].rows, strict=True):
        assert row == (erratum.number, erratum.claimed, erratum.holds)
        assert answer[erratum.number]


def test_each_has_its_test():
    tests = (Path(__file__).parent / "test_errata_checks.py").read_text()
    assert {int(n) for n in re.findall(r"def test_e(\d+)_", tests)} == set(range(1, 19))


def test_one_of_them():
    answer = errata.errata("E5")
    assert answer["E5"]["both_ways_seconds"] == pytest.approx(716.1, rel=1e-3)
    with pytest.raises(InputError, match="'E19' is none of E1 to E18"):
        errata.errata("E19")


def test_what_cannot_be_computed_is_said(monkeypatch):
    def lacks():
        raise ImportError("No module named 'numpy'")

    monkeypatch.setattr(errata, "ERRATA", (errata.Erratum("E3", "a", "b", "c", lacks),))
    answer = errata.errata(None)
    assert answer["E3"] is None and answer.warnings == ("E3 is not computed here: No module named 'numpy'",)
