"""benchmarks/gpu.py without a GPU: options, candidates of a cell, rows and bars of known times, a picture; teams."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import devices.team
import gpu
import pytest
from devices.cell import ALL_REDUCE, ZERO_STEP, Cell
from devices.table import BARS, LIMITS, bars_of, draw, line, roofline, rows_of
from devices.team import LEAST_ROUNDS, MOST_CALLS, CandidateFailed, Entry, Rounds, Team, TeamLost, took
from devices.worker import answer
from programs import run

MIB = 1 << 20


def entry(name: str, *seconds: float, wrong: int = 0) -> Entry:
    return Entry(name, calls=3, wrong=wrong, seconds=list(seconds))


def rows(world: int, size: int, op: str = ALL_REDUCE, **seconds: float) -> list[dict]:
    """Rows of one round; __ stands for a blank in a name."""
    return rows_of(Cell(op, world, size), [entry(name.replace("__", " "), took) for name, took in seconds.items()])


def test_the_least_bytes_are_those_of_inputs_and_outputs():
    assert Cell(ALL_REDUCE, 4, 100).least_bytes == 2 * 4 * 100
    assert Cell(ZERO_STEP, 4, 100).least_bytes == 4 * 100 + 3 * 100 + 4 * 100 + 2 * 100


def test_the_roofline_is_the_faster_limit_of_every_round():
    entries = [entry("copy", 2.0, 3.0), entry("sweep", 1.0, 4.0), entry("threads", 4.0, 4.0)]
    assert roofline(entries) == [1.0, 3.0]
    assert rows_of(Cell(ALL_REDUCE, 2, MIB), entries)[2]["x"]["roofline"] == 0.5  # of 0.25 and 0.75
    assert roofline(entries[2:]) == []


def test_ratios_are_medians_within_rounds():
    entries = [entry("gloo", 8.0, 8.0, 80.0), entry("threads", 1.0, 2.0, 40.0)]
    [_, ours] = rows_of(Cell(ALL_REDUCE, 2, MIB), entries)
    assert ours["x"] == {"gloo": 4.0} and ours["microseconds"] == 2e6
    assert "4" in line(ours) and line(ours).count("-") == 1  # no roofline


def test_a_bar_is_taken_where_it_is_hardest_and_said_where_nothing_was_measured():
    measured = rows(2, 256 * MIB, copy=1.0, threads=1.1) + rows(4, 256 * MIB, copy=1.0, threads=2.0)
    [bar], unmeasured = bars_of(measured)
    assert bar.measured == 0.5 and not bar.held and "4 ranks" in bar.what
    assert len(unmeasured) == len(BARS) - 1


def test_every_bar_can_be_held():
    large = rows(2, 256 * MIB, copy=1.0, threads=1.1, processes=1.5, nccl=2.0)
    small = [r for size in (4 << 10, 64 << 10) for r in rows(2, size, threads__push=1.0, symm__one_shot=1.0)]
    middle = rows(2, 64 * MIB, processes=1.0, gloo=11.0)
    steps = rows(2, 256 * MIB, ZERO_STEP, fused__step=1.0, separate__step=2.0)
    bars, unmeasured = bars_of([*large, *small, *middle, *steps])
    assert len(bars) == len(BARS) and all(bar.held for bar in bars) and unmeasured == []


def test_what_bars_ask_for_is_raced():
    for _, op, size, ours, theirs, _ in BARS:
        names = gpu.wanted(Cell(op, 2, size))
        assert ours in names and set(LIMITS) <= set(names) and (theirs == "roofline" or theirs in names)
    asked = gpu.cells_of(gpu.parse([]), 2)
    assert {(op, size) for _, op, size, *_ in BARS} <= {(cell.op, cell.size) for cell in asked}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--ranks", "3"], "invalid number of ranks 3"),
        (["--ranks", "two"], "'two'"),
        (["--sizes", "100"], "100 bytes"),
        (["--sizes", "1 furlong"], "furlong"),
        (["--peers", "pigeon"], "'pigeon' is none of gloo"),
        (["--seconds", "0"], "--seconds is 0"),
        (["--json", "/nowhere/x.json"], "no folder"),
    ],
)
def test_bad_input_is_refused(arguments, named):
    assert named in run("gpu.py", *arguments, status=2)


def test_the_picture_has_a_panel_for_every_number_of_ranks(tmp_path):
    pytest.importorskip("matplotlib")
    many = [r for world in (2, 4) for size in (4096, MIB) for r in rows(world, size, copy=1e-3, threads=2e-3)]
    draw({"rows": many, "machine": {"gpu": "none"}}, tmp_path / "gpu.png")
    assert (tmp_path / "gpu.png").stat().st_size > 10_000


BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RANK = """
import json, os, sys, time
from devices.worker import serve
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
def rounds():
    """Rounds whose teams are ended."""
    rounds = Rounds()
    yield rounds
    rounds.close()


def test_every_candidate_runs_in_every_round(rounds):
    rounds.welcome(make_team("steady,stuck"), 30)
    [entry] = rounds.measure(CELL, ["steady"], 0.0)  # other candidates are not asked
    assert len(entry.seconds) == LEAST_ROUNDS
    assert 1 <= entry.calls <= MOST_CALLS and entry.seconds == pytest.approx([0.02] * LEAST_ROUNDS)


def test_an_error_leaves_out_the_candidate_and_keeps_its_team(rounds):
    rounds.welcome(make_team("failing,steady"), 30)
    entries = rounds.measure(CELL, ["failing", "steady"], 0.0)
    assert [entry.candidate for entry in entries] == ["steady"]
    assert rounds.left_out == {"failing": "no such kernel"}


@pytest.mark.parametrize(("names", "reason"), [("ending,steady", "cut down"), ("absent", "division by zero")])
def test_ranks_that_end_take_their_team_along(rounds, names, reason):
    rounds.welcome(make_team(names), 30)
    rounds.welcome(make_team("steady"), 30)
    entries = rounds.measure(CELL, ["ending", "steady"], 0.0)
    assert [entry.candidate for entry in entries] == ["steady"]
    assert all(reason in why for why in rounds.left_out.values()) and rounds.left_out


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


def test_an_error_of_one_rank_is_that_of_all():
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
