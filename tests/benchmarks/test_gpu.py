"""benchmarks/gpu.py without a GPU: options, what is raced where, rows and bars of known times, a picture."""

from __future__ import annotations

import gpu
import pytest
from devices.cell import ALL_REDUCE, ZERO_STEP, Cell
from devices.plot import draw
from devices.rounds import Entry
from devices.table import BARS, LIMITS, bars_of, line, roofline, rows_of
from programs import run

MIB = 1 << 20


def entry(name: str, *seconds: float, wrong: int = 0) -> Entry:
    return Entry(name, calls=3, wrong=wrong, seconds=list(seconds))


def rows(world: int, size: int, op: str = ALL_REDUCE, **seconds: float) -> list[dict]:
    """Of one round; __ is a blank of the name."""
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
        (["--ranks", "3"], "3 ranks"),
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
