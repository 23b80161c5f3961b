"""PyTorch's own distributed tests over ringdp: one item per test of torch, run by `python -m tests.conformance`.

They run in a process of their own, because importing torch's test modules changes the process that does it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORLD_SIZE = 2
LIST_LIMIT_S = 120
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("RINGDP_")}
_COMMAND = [sys.executable, "-m", "tests.conformance", "--world-size", str(WORLD_SIZE)]


def _listed() -> list[str]:
    listing = subprocess.run(
        [*_COMMAND, "--list"], cwd=ROOT, env=_ENVIRONMENT, capture_output=True, text=True, timeout=LIST_LIMIT_S
    )
    assert listing.returncode == 0, listing.stderr
    return listing.stdout.split()


NAMES = _listed()


class Run:
    """One run of the suite over the tests that pytest has selected; its results arrive one by one."""

    def __init__(self, selected: list[str]) -> None:
        everything = set(selected) == set(NAMES)
        pattern = "" if everything else "^(" + "|".join(map(re.escape, selected)) + ")$"
        self._process = subprocess.Popen(
            [*_COMMAND, "--json", "--filter", pattern],
            cwd=ROOT,
            env=_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._results: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, Any] = {}

    def result_of(self, name: str) -> dict[str, Any]:
        """Waits until that test is done; the suite ends every test after its time."""
        while name not in self._results:
            self._read(f"before {name}")
        return self._results[name]

    def counts(self) -> dict[str, Any]:
        """Waits until all are done."""
        while not self._counts:
            self._read("before its counts")
        return self._counts

    def _read(self, when: str) -> None:
        line = self._process.stdout.readline()
        assert line, f"the suite ended {when} with status {self._process.wait()}"
        if not line.startswith("{"):
            return  # what torch prints
        read = json.loads(line)
        if "test" in read:
            self._results[read["test"]] = read
        else:
            self._counts = read

    def close(self) -> None:
        """Ends it where it is."""
        self._process.stdout.close()
        self._process.terminate()
        self._process.wait()


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """The run of what was selected; of all of it when only the count is asked for."""
    asked = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    made = Run([name for name in asked if name in NAMES] or NAMES)
    yield made
    made.close()


@pytest.mark.parametrize("name", NAMES)
def test_torch(run: Run, name: str, record_property: Callable[[str, object], None]):
    result = run.result_of(name)
    record_property("seconds", result["seconds"])
    if result["outcome"] in ("skipped", "not applicable"):
        pytest.skip(result["why"])
    assert result["outcome"] == "passed", result["why"]


def test_as_many_pass_as_are_known_to(run: Run):
    counts = run.counts()
    if not counts["least"]:
        pytest.skip(f"no count for torch {counts['torch']} and {WORLD_SIZE} ranks, or only some tests were selected")
    assert counts.get("passed", 0) >= counts["least"]


@pytest.mark.parametrize("backend", ["ringdp", pytest.param("gloo", marks=pytest.mark.long)])
def test_torchs_wrapper_tests_pass_with_ringdps_class(backend):
    pattern = "DistributedDataParallel|DDP|ddp|no_sync|static_graph"
    command = [*_COMMAND, "--backend", backend, "--ddp", "ringdp", "--filter", pattern, "--json"]
    done = subprocess.run(command, cwd=ROOT, env=_ENVIRONMENT, capture_output=True, text=True, timeout=LIST_LIMIT_S)
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = [(r["test"], r["why"]) for r in results if r.get("outcome") == "failed"]
    assert done.returncode == 0 and not failed, (failed, done.stderr[-2000:])
    assert results[-1]["passed"] >= 9


def test_making_a_gloo_group_fails():
    """The guard that keeps gloo from doing ringdp's work does bite."""
    code = (
        "import torch_subject, torch.distributed as dist; torch_subject.forbid_gloo()\n"
        "store = dist.HashStore(); dist.init_process_group('gloo', store=store, rank=0, world_size=1)"
    )
    environment = {**_ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/conformance"), *sys.path])}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert result.returncode != 0
    assert "a ProcessGroupGloo was made in a test of ringdp" in result.stderr
