"""Fixtures of the examples' tests: options, a small text, a group of one, train_gpt and others on ranks."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib.metadata import entry_points
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ranks import HERE, World, values_of
from ringdp.examples.train_gpt import Options, parse_options

LIMIT_S = 240
TINY = ["--quick", "--dim", "16", "--layers", "1", "--seq", "16", "--dropout", "0.1"]


@pytest.fixture(autouse=True)
def as_on_ranks(one_thread: None) -> None:
    """What runs in this process has the bits of ranks."""


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
    return lambda *arguments: parse_options(
        [*TINY, "--corpus", str(text_folder), "--out", str(tmp_path / "out"), *arguments]
    )


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
def train_gpt(run_on_fresh_ranks: Callable[..., World], tmp_path: Path, text_folder: Path) -> Callable[..., str]:
    """Like start_train_gpt, but on forked ranks, and waits; what was printed. The exit status must be 0."""

    def run(ranks: int, *arguments: str) -> str:
        given = [*TINY, "--corpus", str(text_folder), "--out", str(tmp_path / "out"), *arguments]
        return on_fresh_ranks(run_on_fresh_ranks(ranks), "ringdp.examples.train_gpt", given)

    return run


@pytest.fixture
def on_two_ranks(run_on_fresh_ranks: Callable[..., World]) -> Callable[..., Any]:
    """on_two_ranks(module, *arguments): the JSON that an example prints on forked ranks."""
    return lambda module, *arguments: json.loads(on_fresh_ranks(run_on_fresh_ranks(2), module, ["--json", *arguments]))


def on_fresh_ranks(world: World, module: str, arguments: list[str]) -> str:
    """What rank 0 prints of an example that torchrun seems to have started."""
    ended = values_of(world.attempt(as_under_torchrun, module, arguments, within=LIMIT_S))
    errors = "".join(map(world.stderr, range(world.size)))
    assert [status for status, _ in ended] == [0] * world.size, errors
    return ended[0][1]


def as_under_torchrun(module: str, arguments: list[str]) -> tuple[int, str]:
    """On a rank: the exit status and what was printed."""
    own = {"RANK": HERE.rank, "LOCAL_RANK": HERE.rank, "WORLD_SIZE": HERE.size, "LOCAL_WORLD_SIZE": HERE.size}
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": HERE.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    variables = {**own, **store, "TORCHELASTIC_RESTART_COUNT": 0, "OMP_NUM_THREADS": 1}
    os.environ.update({name: str(value) for name, value in variables.items()})
    sys.argv = [module, *arguments]
    multiprocessing.current_process()._config["daemon"] = False  # it may have a loader's workers
    with redirect_stdout(StringIO()) as printed:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            return int(end.code or 0), printed.getvalue()
    return 0, printed.getvalue()
