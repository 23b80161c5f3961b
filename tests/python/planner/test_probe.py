"""ringdp/planner/probe.py: two real ranks."""

import pytest

pytest.importorskip("torch")
from ringdp.planner.local_ranks import run_probe
from ringdp.planner.probe import counted, held
from ringdp.planner.probe_job import ProbeJob
from ringdp.planner.workload import mlp


def test_two_ranks_report_all_that_a_calibration_needs():
    job = ProbeJob("mlp", 4, 3, (4096, 1 << 20), bucket_mb=2.0)
    reports = run_probe(job, 2)
    sizes = counted(mlp(), 4)
    for report in reports:
        assert 2 <= len(report["step"]) <= 3 and len(report["forward"]) == len(report["optimizer"])
        assert [size for size, _, _ in report["collectives"]] == [4096, 1 << 20]
        assert all(seconds > 0 for _, seconds, _ in report["collectives"])
        assert report["sizes"] == sizes
        assert sum(report["buckets"]) == sizes["gradients"] and len(report["buckets"]) > 2
        assert all(0 < ready <= 1.01 for row in report["ready"] for ready in row)
        assert report["peak"] > report["base"] + sizes["parameters"] + sizes["state"]


def test_memory_of_this_process_grows_by_what_it_holds():
    before = held()
    kept = bytearray(64 << 20)
    assert held() - before == pytest.approx(len(kept), rel=0.1)
