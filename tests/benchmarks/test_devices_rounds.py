"""benchmarks/devices/rounds.py, team.py and seat.py with ranks that need no GPU: who fails is left out, and why."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import devices.team
import pytest
from devices.cell import ALL_REDUCE, Cell
from devices.rounds import LEAST_ROUNDS, MOST_CALLS, Race, took
from devices.seat import answer
from devices.team import CandidateFailed, Team, TeamLost

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RANK = """
import json, os, sys, time
from devices.seat import serve
class Steady:
    def __init__(self, name, wrong=0): self.name, self._wrong = name, wrong
    def open(self, cell): print("chatter", cell); return self._wrong
    def run(self, calls): return 0.0, calls * 0.01 * (1 + int(os.environ["RANK"]))
    def close(self): pass
class Failing(Steady):
    def run(self, calls): raise ValueError("no such kernel\\nsecond line")
class Ending(Steady):
    def open(self, cell): print("cut down", file=sys.stderr); sys.stderr.flush(); os._exit(7)
class Stuck(Steady):
    def open(self, cell): time.sleep(600)
kinds = {"steady": Steady, "failing": Failing, "ending": Ending, "stuck": Stuck}
if sys.argv[1] == "absent":
    serve(lambda: 1 / 0)
serve(lambda: [kinds[name](name) for name in sys.argv[1].split(",")])
"""
CELL = Cell(ALL_REDUCE, 2, 4096)


def make_team(names: str) -> Team:
    """Two ranks with these candidates."""
    variables = [{"PYTHONPATH": str(BENCHMARKS), "RANK": str(rank)} for rank in range(2)]
    return Team(names, [[sys.executable, "-c", RANK, names]] * 2, variables)


@pytest.fixture
def race():
    """A race whose teams are ended."""
    race = Race()
    yield race
    race.close()


def test_every_candidate_runs_in_every_round(race):
    race.welcome(make_team("steady,stuck"), 30)
    [entry] = race.measure(CELL, ["steady"], 0.0)  # who is not wanted is not asked
    assert len(entry.seconds) == LEAST_ROUNDS
    assert 1 <= entry.calls <= MOST_CALLS and entry.seconds == pytest.approx([0.02] * LEAST_ROUNDS)


def test_an_error_leaves_out_the_candidate_and_keeps_its_team(race):
    race.welcome(make_team("failing,steady"), 30)
    entries = race.measure(CELL, ["failing", "steady"], 0.0)
    assert [entry.candidate for entry in entries] == ["steady"]
    assert race.left_out == {"failing": "no such kernel"}


@pytest.mark.parametrize(("names", "reason"), [("ending,steady", "cut down"), ("absent", "division by zero")])
def test_ranks_that_end_take_their_team_along(race, names, reason):
    race.welcome(make_team(names), 30)
    race.welcome(make_team("steady"), 30)
    entries = race.measure(CELL, ["ending", "steady"], 0.0)
    assert [entry.candidate for entry in entries] == ["steady"]
    assert all(reason in why for why in race.left_out.values()) and race.left_out


def test_ranks_that_do_not_answer_are_ended(monkeypatch):
    team = make_team("stuck")
    assert team.welcome(30) == ["stuck"]
    with pytest.raises(TeamLost, match="rank 0 did not answer to 'open stuck' in time"):
        team.ask(0.2, "open", "stuck", cell=CELL.as_json())
    pids = [process.pid for process in team._processes]
    monkeypatch.setattr(devices.team, "END_S", 0.1)
    team.dismiss()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_error_of_one_rank_is_everybodys():
    team = make_team("failing")
    team.welcome(30)
    with pytest.raises(CandidateFailed, match="no such kernel"):
        team.ask(30, "run", "failing", calls=1)
    team.dismiss()


def test_a_call_takes_from_the_first_start_to_the_last_end():
    assert took([{"start": 1.0, "stop": 3.0}, {"start": 2.0, "stop": 6.0}], 5) == 1.0


def test_an_answer_is_json_whatever_happens():
    class Broken:
        name = "broken"

        def close(self) -> None:
            raise KeyError

    assert json.dumps(answer(Broken(), {"do": "close"})) == '{"error": "KeyError"}'
