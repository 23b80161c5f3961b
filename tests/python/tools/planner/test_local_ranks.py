"""Reports of measuring ranks come back, a failed or late rank is named, nothing stays."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from ringdp.tools.planner import local_ranks
from ringdp.tools.planner.local_ranks import MeasurementFailed, ProbeJob, run_probe


def test_a_job_survives_json():
    job = ProbeJob("mlp", 4, 3, (4096, 8192), bucket_mb=1.0, alone=False)
    told = json.loads(json.dumps(asdict(job)))
    assert ProbeJob(**{**told, "sizes": tuple(told["sizes"])}) == job


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def started(monkeypatch):
    """Every process that is started."""
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
