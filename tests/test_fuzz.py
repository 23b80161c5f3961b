"""tests/fuzz: earlier findings do not return, Python's parsers survive a few changed files, and the runner counts."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests/fuzz"
sys.path.append(str(FOLDER))
import fuzz  # noqa: E402
import python_loop  # noqa: E402
import python_targets  # noqa: E402
from python_loop import mutated  # noqa: E402

CHANGED = 20  # files of each target
LOG = """\
#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 30Mb
#5000\tREDUCE cov: 40 ft: 90 corp: 7/30b lim: 4096 exec/s: 2500 rss: 31Mb L: 2/9 MS: 1 EraseBytes-
"""


@pytest.mark.parametrize("name", fuzz.PYTHON)
def test_real_files_are_accepted_and_others_refused_by_name(name, monkeypatch):
    monkeypatch.setattr(python_loop.signal, "setitimer", lambda *_: None)  # the machine may be busy
    choose = random.Random(7)
    with python_targets.made(name) as target:
        assert target.name == name
        assert [python_loop.tried(target, seed) for seed in target.seeds] == [("", "")] * len(target.seeds)
        drawn = [mutated(choose.choice(target.seeds), target.seeds, choose) for _ in range(CHANGED)]
        changed = [target.mended(content, choose) for content in drawn]
        said = [python_loop.tried(target, content) for content in [*python_loop.regressions(name), *changed]]
    assert [found for _, found in said if found] == []
    assert len({words for words, _ in said}) > 1, "no change was seen"


def test_what_a_target_lets_out_is_a_finding():
    def take(content: bytes) -> str:
        raise KeyError(len(content))

    target = python_targets.Target("x", [b""], take, ())
    assert python_loop.tried(target, b"abc") == ("", "KeyError: 3 ")


def test_there_is_a_corpus_for_every_target_of_c():
    assert {path.name for path in (FOLDER / "corpus").iterdir()} >= set(fuzz.CPP)
    assert set(fuzz.PYTHON) == set(python_targets.MAKERS)


def test_figures_of_a_run():
    outcome = fuzz.read_log("peer_info", LOG + "stat::number_of_executed_units: 5001\n")
    assert (outcome.runs, outcome.corpus, outcome.coverage) == (5001, 7, "40 edges, 90 features")
    assert not outcome.found


def test_a_finding_is_counted_and_can_be_repeated():
    log = LOG + "==1==ERROR: LeakSanitizer\nartifact_prefix='/b/'; Test unit written to /b/leak-12\n"
    outcome = fuzz.read_log("peer_info", log)
    assert (outcome.runs, outcome.leaks, outcome.crashes) == (5000, 1, 0)
    assert outcome.found == [f"{fuzz.PROGRAMS / 'peer_info'} /b/leak-12"]


def test_without_clang_c_s_targets_are_skipped_by_name(monkeypatch, capsys):
    monkeypatch.setattr(fuzz, "compiler", lambda: None)
    monkeypatch.setattr(fuzz, "fuzz", lambda name, seconds: fuzz.Outcome(name, runs=round(seconds)))
    assert fuzz.main(["--minutes", "9"]) == 0
    said = capsys.readouterr().out
    assert all(f"{name:12}skipped: no clang" in said for name in fuzz.CPP)
    assert f"{len(fuzz.PYTHON)} targets, 0 findings, {len(fuzz.CPP)} skipped" in said
    assert f"{9 * 60 // len(fuzz.PYTHON)} runs" in said
