"""Two real ranks, whose memory is that of the formulas, also where nothing was calibrated."""

from dataclasses import replace

import pytest
from ringdp.tools.planner.local_ranks import ProbeJob, run_probe
from ringdp.tools.planner.prediction import calibrated, memory
from ringdp.tools.planner.probe import counted, held
from ringdp.tools.planner.workload import mlp

JOB = ProbeJob("mlp", 4, 3, (4096, 1 << 20), bucket_mb=2.0, seconds=0.5)


@pytest.fixture(scope="module")
def reports():
    """Reports of two ranks of this machine."""
    return run_probe(JOB, 2)


def test_two_ranks_report_all_that_a_calibration_needs(reports):
    sizes = counted(mlp(), 4)
    for report in reports:
        assert 2 <= len(report["step"]) <= 3 and len(report["forward"]) == len(report["optimizer"])
        assert [size for size, _, _ in report["collectives"]] == [4096, 1 << 20]
        assert all(seconds > 0 for _, seconds, _ in report["collectives"])
        assert report["sizes"] == sizes
        assert sum(report["buckets"]) == sizes["gradients"] and len(report["buckets"]) > 2
        assert all(0 < ready <= 1.01 for row in report["ready"] for ready in row)
        whole = sum(size for name, size in sizes.items() if name != "two_units")
        assert report["peak"] == pytest.approx(report["base"] + whole, rel=0.03)


@pytest.mark.long
@pytest.mark.parametrize(("micro_batch", "stage"), [(1024, 3), (4096, 0), (4, 3)])
def test_memory_of_what_no_calibration_has_seen(reports, micro_batch, stage):
    found = calibrated(reports, JOB, 2, None)
    expected = memory(replace(found, **counted(mlp(), micro_batch)), 2, stage)
    unseen = replace(JOB, micro_batch=micro_batch, zero_stage=stage, steps=2, sizes=(), alone=False)
    assert max(report["peak"] for report in run_probe(unseen, 2)) == pytest.approx(expected, rel=0.03)


def test_memory_of_this_process_grows_by_what_it_holds():
    before = held()
    kept = bytearray(64 << 20)
    assert held() - before == pytest.approx(len(kept), rel=0.1)
