"""benchmarks/ablation.py from end to end, on a tiny model; its arithmetic on samples with known medians."""

from __future__ import annotations

import pytest
from ablation import rows_of, text_of, verdict
from programs import read, run

MODES = ["naive", "overlap per parameter", "bucketed", "bucketed + overlap", "alone"]
TINY = ("--rounds", 2, "--layers", 3, "--width", 32, "--rows", 4, "--bucket-mb", 0.004)


@pytest.mark.parametrize("backend", ["ringdp", pytest.param("gloo", marks=pytest.mark.long)])
def test_four_modes_in_one_run(tmp_path, backend):
    out = tmp_path / "r.json"
    said = run("ablation.py", *TINY, "--backend", backend, "--json", out)
    rows = {row["mode"]: row for row in read(out)["rows"]}
    assert list(rows) == MODES and all(mode in said for mode in MODES)
    assert rows["naive"]["collectives"] == rows["overlap per parameter"]["collectives"] == 6
    assert rows["bucketed"]["collectives"] == rows["bucketed + overlap"]["collectives"] == 3
    for mode in ("naive", "bucketed"):
        assert rows[mode]["exposed"] == pytest.approx(rows[mode]["communication"])


def sample(step: float, communication: float = 0.0, exposed: float = 0.0, last: float = 1.0) -> dict[str, float]:
    return {"step": step, "communication": communication, "exposed": exposed, "last": last, "collectives": 2}


def test_rows_are_medians_of_the_rank_that_computed_longest():
    ranks = [
        {
            "samples": {
                "naive": [sample(4.0), sample(6.0), sample(8.0)],
                "bucketed + overlap": [sample(2.0, 4.0, 2.0)] * 3,
            }
        },
        {
            "samples": {
                "naive": [sample(4.0), sample(6.0), sample(8.0)],
                "bucketed + overlap": [sample(3.0, 4.0, 3.0)] * 3,
            }
        },
    ]
    naive, best = rows_of(ranks)
    assert (naive.step, naive.speedup, best.step, best.speedup, best.exposed, best.hidden) == (6, 1, 2, 3, 2, 0.5)
    assert verdict([naive, best])[0] is False and "MORE" in verdict([naive, best])[1]
    assert "50%" in text_of([naive, best])


def test_the_bar_is_the_last_bucket_plus_a_tenth():
    def judged(exposed: float) -> bool:
        samples = {"naive": [sample(1.0)], "bucketed + overlap": [sample(1.0, 3.0, exposed, 1.0)]}
        return verdict(rows_of([{"samples": samples}]))[0]

    assert judged(1.09) and not judged(1.11)


def test_bad_input_is_refused():
    assert "--rounds is 0" in run("ablation.py", "--rounds", 0, status=2)
    assert "do not divide evenly" in run("ablation.py", "--ranks", 3, "--hosts", 2, status=2)
