"""Ranks of this machine: how they are started and ended, what they report, what they run."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from ringdp.tools.planner import local_ranks, workload
from ringdp.tools.planner.local_ranks import MeasurementFailed, ProbeJob, run_probe
from ringdp.tools.planner.prediction import calibrated, memory
from ringdp.tools.planner.probe import counted, held
from ringdp.tools.planner.question import InputError
from ringdp.tools.planner.workload import mlp


def test_a_job_survives_json():
    job = ProbeJob("mlp", 4, 3, (4096, 8192), bucket_mb=1.0, alone=False)
    told = json.loads(json.dumps(asdict(job)))
    assert ProbeJob(**{**told, "sizes": tuple(told["sizes"])}) == job


@pytest.fixture
def started(monkeypatch):
    """Every process that is started; reporting_rank is a module that it finds."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    processes = []

    class Watched(local_ranks.subprocess.Popen):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            processes.append(self)

    monkeypatch.setattr(local_ranks.subprocess, "Popen", Watched)
    return processes


def job(workload):
    return ProbeJob(workload, 1, 1, ())


def test_ranks_know_who_they_are(started):
    (report,) = run_probe(job("reports"), 3, module="reporting_rank")
    expected = {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
    assert report == {**expected, "OMP_NUM_THREADS": "1"}
    assert len(started) == 3


def test_a_failed_rank_is_named_at_once_and_the_others_are_ended(started):
    begin = time.monotonic()
    with pytest.raises(MeasurementFailed, match="rank 1 ended with status 1; it said: no such luck"):
        run_probe(job("fails"), 2, module="reporting_rank")
    assert time.monotonic() - begin < 50
    assert all(process.poll() is not None for process in started)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", "nothing"),
        ("a\nb\n", "b"),
        ("Traceback\n  File x\nValueError: 3 is odd\n", "ValueError: 3 is odd"),
        ("TypeError: f(): incompatible\n  1. (a: int)\n\nInvoked with: tensor([0])\n", "TypeError: f(): incompatible"),
        ("torch.DistBackendError: Mismatch: 2 sides\n", "torch.DistBackendError: Mismatch: 2 sides"),
        ("KeyError: 1\n\nDuring handling\nRuntimeError: later\n  more: lines\n", "RuntimeError: later"),
    ],
)
def test_the_last_words_are_an_errors_first_line(log, said):
    assert local_ranks.last_words(log) == said


def test_last_words_are_short():
    assert len(local_ranks.last_words("TypeError: " + "Tensor, " * 300)) <= 200


def test_a_late_rank_is_named(started):
    with pytest.raises(MeasurementFailed, match="rank 0 has not ended in time"):
        run_probe(job("sleeps"), 1, limit_s=0.2, module="reporting_rank")
    assert all(process.poll() is not None for process in started)


# Two real ranks, whose memory is that of the formulas, also where nothing was calibrated.

JOB = ProbeJob("mlp", 4, 3, (4096, 1 << 20), bucket_mb=2.0, seconds=0.5)


@pytest.fixture(scope="module")
def reports():
    """Reports of two ranks of this machine."""
    return run_probe(JOB, 2)


@pytest.mark.long  # a calibration takes its time
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
    found = replace(calibrated(reports, JOB, 2, None), **counted(mlp(), micro_batch))
    expected = memory(found, 2, stage)
    # At stage 3 heaps keep the pages of all units that were ever on their way at once: how many depends on timing.
    slack = 0.03 * expected + (found.two_units if stage == 3 else 0)
    unseen = replace(JOB, micro_batch=micro_batch, zero_stage=stage, steps=2, sizes=(), alone=False)
    assert max(report["peak"] for report in run_probe(unseen, 2)) == pytest.approx(expected, abs=slack)


def test_memory_of_this_process_grows_by_what_it_holds():
    before = held()
    kept = bytearray(64 << 20)
    assert held() - before == pytest.approx(len(kept), rel=0.1)


# Workloads: those built in train; others are found by name, or refused in one line.


@pytest.mark.parametrize("name", workload.BUILT_IN)
def test_a_step_lowers_the_loss(name):
    chosen = workload.load(name)
    model, batch = chosen.model(), chosen.batch(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = chosen.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0]


def test_models_of_all_ranks_are_equal():
    one, other = (workload.load("mlp").model() for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


FILE = (
    "from ringdp.tools.planner.workload import mlp\ndef small():\n    return mlp(2, 8)\ndef nothing():\n    return 3\n"
)


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    (tmp_path / "my_own_workload.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "my_own_workload"
    sys.modules.pop("my_own_workload", None)


def test_one_s_own(own_file):
    assert sum(p.numel() for p in workload.load(f"{own_file}:small").model().parameters()) == 2 * 72


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("gtp", "type gpt, mlp or module:function"),
        ("no_such_module:f", "ModuleNotFoundError"),
        ("my_own_workload:gone", "AttributeError"),
        ("my_own_workload:nothing", "returned int"),
    ],
)
def test_what_is_wrong_is_one_line(own_file, name, named):
    with pytest.raises(InputError) as refusal:
        workload.load(name)
    assert named in str(refusal.value) and f"'{name}'" in str(refusal.value) and "\n" not in str(refusal.value)
