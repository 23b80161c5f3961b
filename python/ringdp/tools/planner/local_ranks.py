"""Starts measuring ranks on this machine, reads what they report, and leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ProbeJob:
    """steps: of each kind at most, after two to warm up; fewer when they would take longer than `seconds`.

    sizes: bytes of all-reduces, () to measure none. bucket_mb: as DDP's. alone: whether to measure compute without
    communication too. compress: as DistributedDataParallel takes it; "": not.
    """

    workload: str
    micro_batch: int
    steps: int
    sizes: tuple[int, ...]
    zero_stage: int = 0
    compress: str = ""
    bucket_mb: float = 25.0
    alone: bool = True
    seconds: float = 2.5


MODULE = "ringdp.tools.planner.probe"
# Freed blocks go back to the kernel, so that what is measured is what is held.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}
LIMIT_S = 300.0
_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Failed|Lost|Mismatch|Interrupt|Exit)\b.*?: ")
_MOST_WORDS = 200


class MeasurementFailed(RuntimeError):
    """A rank failed or did not end in time; the message has its last words."""


def run_probe(job: ProbeJob, ranks: int, limit_s: float = LIMIT_S, module: str = MODULE) -> list[dict[str, Any]]:
    """Every rank's report, by rank. MeasurementFailed names the rank."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringdp-plan-")))
        port = _free_port()
        processes = []
        for rank in range(ranks):
            log = stack.enter_context(open(folder / f"log-{rank}", "wb"))
            command = [sys.executable, "-m", module, str(folder / "reports.json"), json.dumps(asdict(job))]
            process = subprocess.Popen(
                command, env=_environment(rank, ranks, port), stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(_end, process)
            processes.append(process)
        _wait(processes, folder, time.monotonic() + limit_s)
        return json.loads((folder / "reports.json").read_text())


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return {**os.environ, **MALLOC, **own, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, deadline: float) -> None:
    """Until all have ended well; at the first that has not, its last line."""
    running = dict(enumerate(processes))
    while running:
        for rank, process in list(running.items()):
            status = process.poll()
            if status:
                said = last_words((folder / f"log-{rank}").read_text(errors="replace"))
                raise MeasurementFailed(f"rank {rank} ended with status {status}; it said: {said}")
            if status == 0:
                del running[rank]
        if running and time.monotonic() > deadline:
            raise MeasurementFailed(f"rank {min(running)} has not ended in time")
        time.sleep(0.02)


def last_words(log: str) -> str:
    """The last line that names an error, else the last line; an error may have many lines after its first."""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["nothing"]
    errors = [line for line in lines if _ERROR.match(line)]
    return textwrap.shorten((errors or lines)[-1], _MOST_WORDS, placeholder=" ...")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
