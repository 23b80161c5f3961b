"""`ringdp selftest`: passes on a good backend, fails on a wrong answer, refuses what it does not know."""

from __future__ import annotations

import argparse
import json

import play_ranks
import pytest
from ringdp import _native
from ringdp.cli import main, selftest


@pytest.mark.long
def test_the_whole_command_over_both_transports(capsys):
    status = main.main(["selftest", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["failures"] == []
    assert (report["good"], report["wrong"], report["not_run"], status) == (True, 0, 0, 0)
    assert report["exact"] > 1000 and report["refused"] > 100
    assert {case["transport"] for case in report["cases"]} == {"shm", "tcp"}


def test_a_part_of_it_as_text(capsys):
    assert main.main(["selftest", "-n", "3", "--transport", "tcp", "--ops", "broadcast,barrier"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["broadcast", "✓"] for line in lines)
    assert lines[-1].startswith("21 exact, 0 refused, 0 wrong: 3 ranks over tcp")


def options(**given):
    return argparse.Namespace(**{"ranks": 2, "transport": ["shm"], "ops": ["all_reduce"], "timeout": 20.0, **given})


def test_a_wrong_oracle_fails_it(capsys):
    assert selftest.check(options(json=True), entry=play_ranks.with_a_wrong_oracle) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["wrong"] > 0 and not report["good"]
    assert "expected" in report["failures"][0]["why"]


def test_a_dead_rank_fails_it_by_name(capsys):
    assert selftest.check(options(json=False), entry=play_ranks.rank_1_dies) == 1
    assert "rank 1: died with status 7" in capsys.readouterr().out


def test_an_unusable_extension_is_status_2(monkeypatch, refusal):
    def refuse():
        raise ImportError("ringdp's extension is not built here: do this")

    monkeypatch.setattr(_native, "load", refuse)
    assert "do this" in refusal("selftest")
