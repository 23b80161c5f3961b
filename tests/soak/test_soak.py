"""benchmarks/soak.py: a few seconds of it, and that it notices wrong bits and growth."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from ringdp.selftest.calls import RankContext
from ringdp.selftest.cases import OPS, Case

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks/soak.py"


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("soak_program", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def sample(seconds: float, **sizes: float) -> dict[str, float]:
    return {"seconds": seconds, "descriptors": 10, "threads": 4, "rss_kib": 1000, "shared_kib": 500, "shm": 0, **sizes}


@pytest.mark.long
def test_a_short_run_is_clean(run_python):
    result = run_python(str(PROGRAM), "--minutes", "0.05", "-n", "4", "--timeout", "30", "--json")
    report = json.loads(result.stdout.splitlines()[-1]) if result.stdout else {}
    assert result.returncode == 0, f"{report.get('failures')} {result.stderr}"
    assert report["failures"] == []
    assert report["checks"] >= report["calls"] > 100
    assert len(report["ops"]) > len(OPS) // 2


@pytest.mark.parametrize("arguments", [["-n", "1"], ["--minutes", "0"], ["--ops", "juggle"]])
def test_a_wrong_command_line_is_status_2(run_warm, arguments):
    assert run_warm(str(PROGRAM), *arguments).returncode == 2


def test_groups_are_world_halves_and_pairs_once_each(soak):
    assert soak.memberships(2) == [[0, 1]]
    assert soak.memberships(4) == [[0, 1, 2, 3], [0, 1], [2, 3], [1, 2]]
    assert soak.memberships(3) == [[0, 1, 2], [1, 2], [0, 1]]


@pytest.mark.parametrize("what", ["descriptors", "threads", "shm", "rss_kib", "shared_kib"])
def test_what_grows_after_the_warm_up_is_named(soak, what):
    more = sample(0)[what] + (soak.SLACK_KIB if what in soak.MEMORY else 0)
    assert soak.growth([sample(0), sample(50), sample(100, **{what: more})], 100) == []
    [grew] = soak.growth([sample(0), sample(50), sample(100, **{what: more + 1})], 100) or ["nothing"]
    assert grew.startswith(f"{what} grew from")
    early = [sample(0, **{what: more + 1}), sample(100, **{what: more + 1})]
    assert soak.growth(early, 100) == []


def test_a_wrong_bit_is_a_failure(soak, monkeypatch):
    made = soak.Soak.__new__(soak.Soak)
    made.record = soak.Record(0)
    seat = RankContext(0, 1)
    monkeypatch.setattr(dist, "broadcast", lambda tensor, **_: tensor.view(torch.uint8)[-1:].bitwise_xor_(1) and None)
    made._check(seat, Case("broadcast", "float32"), 5)
    assert made.record.checks == 1
    assert made.record.wrong[0].startswith("broadcast float32, result from root 0, 1 ranks, 5 elements: element 4 of 5")
    report = soak.summary([{**vars(made.record), "samples": [sample(0)]}], 1.0)
    assert report["failures"] == [f"rank 0: {made.record.wrong[0]}"]
