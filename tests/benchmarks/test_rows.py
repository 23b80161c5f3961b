"""Rows: medians of ratios, not ratios of medians; what a limit does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from race.cell import Cell
from race.conductor import Team
from race.rounds import Entry, entries_of
from race.rows import COLUMNS, header, line, paired, rows_of, spread

TEAM = Team("torch", 0, 2, Path("/dev/null"), hello={"candidates": ["ringdp", "gloo", "sweep"], "limits": ["sweep"]})
CELL = Cell("all_reduce", "float32", 4, 4000)


def entries(**times):
    return [Entry(name, TEAM, index, list(seconds)) for index, (name, seconds) in enumerate(times.items())]


def test_ratios_are_taken_round_by_round():
    drifting = paired([1.0, 10.0, 100.0], [2.0, 5.0, 200.0])
    assert drifting["median"] == 0.5
    assert (drifting["p10"], drifting["p90"]) == (0.5, 2.0)
    with pytest.raises(ValueError):
        paired([1.0], [1.0, 2.0])


def test_spread_is_the_tenth_and_ninetieth_percentile():
    assert spread(range(11)) == (1, 9)
    assert spread([3.0]) == (3.0, 3.0)


def test_a_row_has_bandwidths_and_shares():
    rows = rows_of(CELL, entries(ringdp=[2e-6, 4e-6, 8e-6], gloo=[8e-6, 8e-6, 8e-6], sweep=[1e-6, 1e-6, 6e-6]))
    ours, gloo, sweep = rows
    assert ours["time_us"] == pytest.approx(4.0)
    assert ours["algbw"] == pytest.approx(CELL.nbytes / 4e-6 / 1e9)
    assert ours["busbw"] == pytest.approx(1.5 * ours["algbw"])
    assert ours["of_sweep"]["median"] == pytest.approx(0.5)
    assert ours["over_gloo"]["median"] == pytest.approx(2.0)
    assert "over_ringdp" not in ours
    assert gloo["over_ringdp"]["median"] == pytest.approx(2.0)
    assert "over_gloo" not in gloo
    assert "of_sweep" not in sweep


def test_lines_have_all_columns_and_a_limit_is_no_collective():
    rows = rows_of(CELL, entries(ringdp=[2e-6], gloo=[8e-6], sweep=[1e-6]))
    lines = [line(row, ["sweep"]) for row in rows]
    assert {len(text) for text in lines} == {len(header())}
    assert sum(width + 1 for _, width in COLUMNS) - 1 == len(header())
    assert lines[2].split()[-9:] == ["-"] * 9


def test_who_refuses_does_not_take_part():
    took_part = entries_of([TEAM], CELL, lambda name, cell: "cannot" if name == "gloo" else "")
    assert [(entry.candidate, entry.index) for entry in took_part] == [("ringdp", 0), ("sweep", 2)]
