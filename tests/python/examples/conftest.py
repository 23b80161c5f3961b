"""Fixtures of the examples' tests: options, a small text, a group of one, train_gpt under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ringdp.examples.options import Options, parse

LIMIT_S = 240
TINY = ["--quick", "--dim", "16", "--layers", "1", "--seq", "16", "--dropout", "0.1"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One intra-op thread, as every rank has: bits can be compared, and small kernels do not fight for cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Sixty different .py files of about a kilobyte, in two folders."""
    folder = tmp_path / "text"
    (folder / "deeper").mkdir(parents=True)
    for number in range(60):
        place = folder / "deeper" if number % 3 == 0 else folder
        (place / f"file_{number:02}.py").write_text(f"def f_{number}(x):\n    return x + {number}\n" * 30)
    return folder


@pytest.fixture
def tiny(tmp_path: Path, text_folder: Path) -> Callable[..., Options]:
    """Makes options of a run that takes a moment; with dropout, so that RNG states count."""
    return lambda *arguments: parse([*TINY, "--corpus", str(text_folder), "--out", str(tmp_path / "out"), *arguments])


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(params=["gloo", "ringdp"])
def backend(request: pytest.FixtureRequest) -> str:
    """Both backends; ringdp only where it is installed, because the ranks do not import it."""
    if request.param == "ringdp" and "ringdp" not in entry_points(group="torch.backends").names:
        pytest.skip("ringdp is not installed: torch does not find its backend")
    return request.param


@pytest.fixture
def start_train_gpt(tmp_path: Path, text_folder: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts the tiny run on some ranks: a torchrun that is running."""

    def start(ranks: int, *arguments: str, **popen: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ringdp.examples.train_gpt", "--nproc", str(ranks), *TINY]
        command += ["--corpus", str(text_folder), "--out", str(tmp_path / "out"), *arguments]
        outside = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        return subprocess.Popen(
            command, env=outside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen
        )

    return start


@pytest.fixture
def train_gpt(start_train_gpt: Callable[..., subprocess.Popen[str]]) -> Callable[..., str]:
    """Like start_train_gpt, but waits and returns what was printed; the exit status must be 0."""

    def run(ranks: int, *arguments: str) -> str:
        started = start_train_gpt(ranks, *arguments)
        try:
            printed, errors = started.communicate(timeout=LIMIT_S)
        finally:
            started.kill()
        assert started.returncode == 0, f"{printed}\n{errors}"
        return printed

    return run


@pytest.fixture
def on_two_ranks(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Any]:
    """on_two_ranks(module, *arguments): the JSON that an example prints under torchrun."""
    outside = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}

    def run(module: str, *arguments: str) -> Any:
        ended = run_python("-m", module, "--nproc", "2", "--json", *arguments, **outside)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    return run
