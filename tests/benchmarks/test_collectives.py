"""benchmarks/collectives.py from end to end, on 2 ranks and a few KiB: what is right passes, what is broken is seen."""

from __future__ import annotations

import pytest
from programs import read, run
from runner.cell import OPS
from runner.hosts import why_impossible

QUICK = ("--ranks", 2, "--rounds", 2, "--seconds", 0)


def test_every_collective_is_measured_and_right(tmp_path):
    out, picture = tmp_path / "r.json", tmp_path / "r.png"
    said = run(
        *("collectives.py", *QUICK, "--sizes", "4KiB", "--ops", "all", "--dtypes", "all"),
        *("--peers", "all", "--peers-folder", tmp_path, "--json", out, "--plot", picture),
    )
    result = read(out)
    assert picture.stat().st_size > 10_000
    assert result["machine"]["cores"] >= 1
    for op in OPS:
        for dtype in ("float32", "bfloat16"):
            rows = {row["candidate"]: row for row in result["rows"] if (row["op"], row["type"]) == (op, dtype)}
            assert {"ringdp", "gloo", "sweep", "barrier"} <= set(rows)
            assert ("shuffle" in rows) == (op == "all_reduce")
            assert all(row["wrong"] == 0 and row["rounds"] == 2 and row["time_us"] > 0 for row in rows.values())
            assert rows["ringdp"]["of_sweep"]["median"] > 0
            assert rows["ringdp"]["over_gloo"]["p10"] <= rows["ringdp"]["over_gloo"]["p90"]
    for peer in ("openmpi", "mpich", "intelmpi", "deepspeed"):
        assert f"{peer}, 2 ranks: not installed" in said


def test_one_wrong_element_makes_the_status_one(tmp_path):
    out = tmp_path / "r.json"
    run(
        *("collectives.py", *QUICK, "--sizes", "4KiB", "--backend", "broken:broken_backend", "--json", out),
        status=1,
    )
    wrong = {row["candidate"]: row["wrong"] for row in read(out)["rows"]}
    rounds, ranks = 2 + 2, 2  # with the warm-up
    assert wrong.pop("broken") == rounds * ranks
    assert set(wrong.values()) == {0}


def test_a_backend_that_cannot_start_is_reported_and_nothing_hangs():
    said = run("collectives.py", *QUICK, "--sizes", "64", "--backend", "absent:no_such_module", status=1)
    assert "no_such_module" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "4x"], "no size"),
        (["--ranks", "1"], "2 to 64 ranks"),
        (["--ops", "all_sum"], "'all_sum' is none of"),
        (["--ranks", "3", "--hosts", "2"], "does not divide evenly"),
        (["--json", "/no/such/folder/r.json"], "there is no folder"),
        (["--backend", "nccl"], "NAME:MODULE"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(arguments, words):
    assert words in run("collectives.py", *arguments, status=2)


def test_over_hosts_the_limit_is_a_pair_of_sockets(tmp_path):
    if reason := why_impossible():
        pytest.skip(reason)
    out = tmp_path / "r.json"
    run("collectives.py", *QUICK, "--sizes", "64KiB", "--hosts", 2, "--rate", 1, "--json", out)
    rows = {row["candidate"]: row for row in read(out)["rows"]}
    assert set(rows) == {"ringdp", "gloo", "probe"}
    assert rows["ringdp"]["of_probe"]["median"] > 0
    assert sum(row["wrong"] for row in rows.values()) == 0
