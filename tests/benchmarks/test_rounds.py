"""A race of teams without torch: turns, times, damage, and a team that dies while the others go on."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from race.cell import Cell
from race.conductor import Conductor, TeamLost
from race.native import Block, make_shared
from race.rounds import CellRun, Length

PROGRAM = str(Path(__file__).with_name("fake_rank.py"))
RANKS = 2
CELL = Cell("broadcast", "float32", RANKS, 4096)


@contextmanager
def race_of(kinds, native, folder):
    """A conductor with one team per kind."""
    descriptor, block = make_shared("test-block", ctypes.sizeof(Block))
    conductor = Conductor(folder, {"ranks": RANKS, "library": native._name, "block": block}, [CELL])
    try:
        for number, kind in enumerate(kinds):
            lines = [[sys.executable, PROGRAM, str(folder), str(number), str(rank), kind] for rank in range(RANKS)]
            conductor.add(kind, number, RANKS, lines, [{}] * RANKS)
        yield conductor
    finally:
        processes = [process for team in conductor.teams for process in team.processes]
        conductor.close()
        os.close(descriptor)
        assert all(process.poll() is not None for process in processes)


def run(conductor, least=4):
    cell_run = CellRun(conductor, 0, lambda name, cell: "")
    cell_run.run(Length(least=least, most=least, seconds=0))
    return cell_run


def test_every_team_runs_every_round_and_damage_is_counted(native, tmp_path):
    with race_of(["steady", "wrong"], native, tmp_path) as conductor:
        cell_run = run(conductor)
    steady, wrong = cell_run.entries
    assert (steady.candidate, wrong.candidate) == ("steady", "wrong")
    assert len(steady.times) == len(wrong.times) == 4
    assert all(seconds > 0 for seconds in steady.times + wrong.times)
    assert steady.wrong == 0
    assert wrong.wrong == 4 + 2  # one element per round, warm-up included
    assert not cell_run.lost


def test_a_team_that_dies_is_named_and_the_others_go_on(native, tmp_path):
    with race_of(["steady", "mortal"], native, tmp_path) as conductor:
        first, second = run(conductor), run(conductor)
    assert [entry.candidate for entry in first.entries] == ["steady"]
    assert len(first.entries[0].times) == 4
    assert "status 7" in first.lost["mortal"]
    assert "these are my last words" in first.lost["mortal"]
    assert [entry.candidate for entry in second.entries] == ["steady"]


def test_without_the_first_team_there_is_no_race(native, tmp_path):
    with race_of(["mortal", "steady"], native, tmp_path) as conductor, pytest.raises(TeamLost, match="status 7"):
        run(conductor)


def test_a_team_that_cannot_start_is_reported_with_its_last_words(native, tmp_path):
    with (
        race_of(["steady"], native, tmp_path) as conductor,
        pytest.raises(TeamLost, match="no such team here"),
    ):
        conductor.add("other", 1, 1, [[sys.executable, "-c", "raise SystemExit('no such team here')"]], [{}])
