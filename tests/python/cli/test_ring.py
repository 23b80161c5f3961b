"""`ringdp ring`: the corrected worked example, from the running ring."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")

from ringdp.cli import main, ring


def test_the_worked_example_of_four_ranks() -> None:
    """B12 with erratum E4: after the reduce-scatter rank r owns element (r + 1) mod 4."""
    report = ring.walk(4, 4, "rotated")
    finals = {e["rank"]: (e["begin"], e["values"]) for e in report["events"] if e["kind"] == "final sum"}
    assert finals == {0: (1, [104.0]), 1: (2, [108.0]), 2: (3, [112.0]), 3: (0, [100.0])}
    first = {e["rank"]: (e["begin"], e["values"]) for e in report["events"] if e["round"] == 0}
    assert first == {0: (3, [56.0]), 1: (0, [30.0]), 2: (1, [52.0]), 3: (2, [74.0])}
    assert report["results"] == [[100.0, 104.0, 108.0, 112.0]] * 4
    assert report["rounds"] == [6] * 4
    assert report["bytes_sent"] == [24] * 4


@pytest.mark.parametrize("order", ["rotated", "rank"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_rank_ends_with_the_sum(ranks: int, order: str) -> None:
    report = ring.walk(ranks, 5, order)
    expected = [sum(column) for column in zip(*report["inputs"], strict=True)]
    assert report["results"] == [expected] * ranks


def test_text_and_json(capsys: Any) -> None:
    assert main.main(["ring", "--ranks", "3"]) == 0
    text = capsys.readouterr().out
    assert "rounds counted   4 = 2(N-1)" in text and text.count("ends with 60 63 66") == 3
    assert main.main(["ring", "--ranks", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == [[60.0, 63.0, 66.0]] * 3


def test_refuses_no_ranks(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main.main(["ring", "--ranks", "0"])
    assert "not a positive number" in capsys.readouterr().err
