"""`ringdp blame`: findings as text and JSON, nothing when nothing is wrong; a bad folder is one line."""

from __future__ import annotations

import json

import pytest
from made_up import Run, as_file
from ringdp.cli.main import main


def left_by(run, folder):
    for dump in run.dumps():
        as_file(dump, folder)
    return str(folder)


SLOW = Run(ranks=3, compute=lambda rank, step: 10 + 200 * (rank == 2))


def test_the_finding_names_rank_cause_and_cost(tmp_path, capsys):
    assert main(["blame", left_by(SLOW, tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "compute" in said and "Rank 2 came last 19 of 19 times" in said
    assert "200.0 ms more" in said and "% of the time" in said


def test_json_has_every_field(tmp_path, capsys):
    assert main(["blame", left_by(SLOW, tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (finding,) = report["findings"]
    assert finding["cause"] == "compute" and finding["ranks"] == [2]
    assert finding["seconds"] == pytest.approx(19 * 0.2, rel=0.01)
    assert finding["share"] == pytest.approx(finding["seconds"] / report["seconds"])


def test_nothing_to_blame_is_said(tmp_path, capsys):
    assert main(["blame", left_by(Run(ranks=2), tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Nothing to blame in 19 collectives and 19 steps")


def test_a_missing_rank_is_one_line(tmp_path, capsys):
    folder = left_by(SLOW, tmp_path)
    (tmp_path / "rank_1").unlink()
    assert main(["blame", folder]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "no trace of ranks [1]" in said.err
