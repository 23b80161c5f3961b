"""benchmarks/zero_step.py from end to end, on few parameters; its ratio on times with a known median."""

from __future__ import annotations

import zero_step
from programs import read, run


def test_four_optimizers_in_one_run_with_torchs_bits(tmp_path):
    out = tmp_path / "r.json"
    said = run("zero_step.py", "--parameters", 10_001, "--tensors", 3, "--rounds", 2, "--json", out)
    result = read(out)
    assert [row["optimizer"] for row in result["rows"]] == ["torch", "torch fused", "ringdp", "ringdp fused"]
    assert all(row["seconds"] > 0 for row in result["rows"])
    assert "equal to torch's bits" in said
    assert [bar["least"] for bar in result["bars"]] == [3.0, 0.4, 0.95]
    assert sum(f"held: {bar['what']}" in said.lower() for bar in result["bars"]) == 3


def test_a_ratio_is_the_median_of_those_of_the_rounds():
    seconds = {"ringdp": [1.0, 2.0, 4.0], "torch": [2.0, 2.0, 2.0]}
    assert zero_step.ratio(seconds, "ringdp", "torch") == 1.0


def test_bad_input_is_refused():
    assert "--rounds is 0" in run("zero_step.py", "--rounds", 0, status=2)
    assert "more than --parameters 3" in run("zero_step.py", "--parameters", 3, status=2)
