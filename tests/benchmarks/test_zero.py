"""benchmarks/zero.py from end to end, on a tiny model; its arithmetic on times with known maxima."""

from __future__ import annotations

import zero
from programs import read, run
from shards.report import Bar


def test_every_stage_races_torchs_program_and_ends_with_the_same_bits(tmp_path):
    out = tmp_path / "r.json"
    tiny = ("--rounds", 2, "--layers", 2, "--width", 48, "--rows", 4)
    said = run("zero.py", *tiny, "--json", out)
    names = [row["training"] for row in read(out)["rows"]]
    assert names == [
        "ringdp stage 1",
        "ringdp stage 1, gather=forward",
        "DDP + ZeroRedundancyOptimizer",
        "ringdp stage 2",
        "ringdp stage 2, gather=forward",
        "FSDP2, parameters kept",
        "ringdp stage 3",
        "ringdp stage 3, prefetch off",
        "FSDP2",
    ]
    assert "parameters of ringdp's trainings: equal" in said
    assert "ringdp stage 2 / ringdp stage 2, gather=forward: " in said
    assert [bar["least"] for bar in read(out)["bars"]] == [1.5, 2.0, 1.0]
    waited = {row["training"]: row["exposed gathers"] for row in read(out)["rows"]}
    assert [name for name in names if waited[name]] == [name for name in names if name.startswith("ringdp")]


def test_a_round_takes_as_long_as_its_slowest_rank():
    ranks = [{"seconds": {"a": [1.0, 5.0]}}, {"seconds": {"a": [2.0, 3.0]}}]
    assert zero.by_round(ranks, "seconds", max) == {"a": [2.0, 5.0]}


def test_a_bar_is_held_from_its_value_on():
    assert Bar("x", 1.5, 1.5).held and not Bar("x", 1.49, 1.5).held
    assert "NOT HELD: x 1.49" in str(Bar("x", 1.49, 1.5))


def test_bad_input_is_refused():
    assert "--stages has '4'" in run("zero.py", "--stages", "1,4", status=2)
    assert "do not divide evenly" in run("zero.py", "--ranks", 3, "--hosts", 2, status=2)
