"""PyTorch's own distributed tests over ringdp, as `python -m tests.conformance` runs them.

They run in a process of their own, because importing torch's test modules changes the process that does it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import without_settings

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300


def outcome(*arguments: str) -> tuple[list[str], dict[str, Any]]:
    """What neither passed nor was skipped and why, and the counts, of a run on two ranks."""
    command = [sys.executable, "-m", "tests.conformance", "--world-size", "2", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=without_settings(), capture_output=True, text=True, timeout=LIMIT_S)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows and "test" not in rows[-1], f"the suite ended with status {done.returncode}: {done.stderr[-2000:]}"
    good = ("passed", "skipped", "not applicable")
    failed = [f"{row['test']}: {row['why']}" for row in rows[:-1] if row["outcome"] not in good]
    assert failed or done.returncode == 0, f"status {done.returncode}: {rows[-1]} {done.stderr[-2000:]}"
    return failed, rows[-1]


def test_torchs_tests_pass():
    """Those over the default group; most come again for subgroups."""
    failed, counts = outcome("--filter", "^(?!.*(group|coalesced))")
    assert failed == []
    assert counts["passed"] >= 30, counts


@pytest.mark.long
def test_all_of_torchs_tests_pass():
    failed, counts = outcome()
    assert failed == []
    assert counts["passed"] >= (counts["least"] or 80), counts  # no torch release is known to have fewer


@pytest.mark.long
@pytest.mark.parametrize("backend", ["ringdp", "gloo"])
def test_torchs_wrapper_tests_pass_with_ringdps_class(backend):
    pattern = "DistributedDataParallel|DDP|ddp|no_sync|static_graph"
    failed, counts = outcome("--backend", backend, "--ddp", "ringdp", "--filter", pattern)
    assert failed == []
    assert counts["passed"] >= 9


@pytest.mark.long  # of the runner, not of ringdp
def test_making_a_gloo_group_fails():
    """The guard that keeps gloo from doing ringdp's work does bite."""
    code = (
        "import torch_subject, torch.distributed as dist; torch_subject.forbid_gloo()\n"
        "store = dist.HashStore(); dist.init_process_group('gloo', store=store, rank=0, world_size=1)"
    )
    environment = without_settings(PYTHONPATH=os.pathsep.join([str(ROOT / "tests/conformance"), *sys.path]))
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert result.returncode != 0
    assert "a ProcessGroupGloo was made in a test of ringdp" in result.stderr
