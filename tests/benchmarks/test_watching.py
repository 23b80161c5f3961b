"""benchmarks/watching.py from end to end, on few steps; its shares on times with a known median."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import watching
from watched.rank import LANES, PLAIN

sys.path.append(str(Path(__file__).resolve().parent))
from programs import read, run


def test_every_way_of_watching_beside_the_bare_step(tmp_path):
    arguments = ("--model", "mlp", "--micro-batch", 2, "--rounds", 2, "--steps", 1)
    said = run("watching.py", *arguments, "--json", tmp_path / "r.json", "--plot", tmp_path / "r.png")
    result = read(tmp_path / "r.json")
    assert [row["lane"] for row in result["rows"]] == list(LANES)
    assert all(row["seconds"] > 0 and row["cpu"] > 0 for row in result["rows"])
    assert result["events_per_step"] > 5
    assert sum(said.lower().count(f"held: {lane.lower()} costs") for lane in LANES[1:]) == len(LANES) - 1
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def rounds(*seconds):
    return [{"seconds": one, "cpu": 2 * one} for one in seconds]


def test_a_cost_is_the_median_over_rounds_of_the_slowest_ranks_time_and_of_all_cpu_time():
    bare, slow = rounds(1.0, 2.0, 4.0), rounds(1.02, 2.0, 4.4)
    fast, even = rounds(0.5, 0.5, 0.5), rounds(0.5, 0.5, 0.5)
    lanes = {lane: bare for lane in LANES} | {"audit": slow}
    others = {lane: fast for lane in LANES} | {"audit": even}
    by_lane = {row.lane: row for row in watching.rows_of([{"lanes": lanes}, {"lanes": others}])}
    assert by_lane[PLAIN].cost == 0 and by_lane["check_drift"].held
    audit = by_lane["audit"]
    assert audit.cost == pytest.approx(0.02)
    assert audit.cpu_cost == pytest.approx(3.04 / 3 - 1) and not audit.held


def test_bad_input_is_refused():
    assert "--steps is 0" in run("watching.py", "--steps", 0, status=2)
