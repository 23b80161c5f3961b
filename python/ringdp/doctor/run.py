"""Runs the job until every rank has made its steps, or none comes any further, and gathers the evidence."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ringdp.attach import job
from ringdp.attach.assignment import Assignment
from ringdp.attach.records import RankRecords, Reader, absent
from ringdp.doctor.checks.failure import HANGS
from ringdp.doctor.evidence import Baseline, Evidence
from ringdp.doctor.probes.errors import stack_file

OUTPUT = "output.log"
DONE = "every rank has made its steps"
SILENT = "was ended, after ten times --timeout"
_STARTS_WITHIN = 10  # times the patience with a running job: it imports, compiles, downloads
_STACKS_WITHIN_S = 0.5


def examine(
    command: Sequence[str], assignment: Assignment, steps: int, patience_s: float, baseline: Baseline | None
) -> Evidence:
    """The job's output goes to a file beside the records. OSError when it cannot be started.

    patience_s: without a new record of any rank for so long, once there were some, the job hangs; ten times as long
    is waited for the first one.
    """
    assignment.write_options({"folder": str(assignment.folder)})
    watch = Watch(Reader(assignment.folder), assignment.folder, steps, patience_s)
    with (assignment.folder / OUTPUT).open("wb") as output:
        ended = job.run(command, assignment.environment, watch.tick, output, output)
    ranks = watch.reader.read()
    return Evidence(ranks, baseline, ended.stopped, ended.status, watch.stacks)


class Watch:
    """Decides when the run has been long enough. `stacks`: where ranks were when they came no further."""

    def __init__(self, reader: Reader, folder: Path, steps: int, patience_s: float) -> None:
        self.reader = reader
        self.stacks: dict[int, str] = {}
        self._folder = folder
        self._steps = steps
        self._patience_s = patience_s
        self._lines = 0
        self._moved = time.monotonic()

    def tick(self) -> str:
        """Why to end the job now; '' for no reason."""
        ranks = self.reader.read()
        lines = sum(records.lines for records in ranks.values())
        if lines != self._lines:
            self._lines, self._moved = lines, time.monotonic()
        if ranks and self._all_done(ranks):
            return DONE
        idle = time.monotonic() - self._moved
        if not ranks and idle > _STARTS_WITHIN * self._patience_s:
            return SILENT
        if ranks and idle > self._patience_s:
            self.stacks = stacks_of(ranks, self._folder)
            return HANGS
        return ""

    def _all_done(self, ranks: Mapping[int, RankRecords]) -> bool:
        # Ranks that are still absent after twice the steps write elsewhere, or nothing.
        wanted = self._steps if not absent(ranks) else 2 * self._steps
        return all(len(records.of("step")) >= wanted for records in ranks.values())


def stacks_of(ranks: Mapping[int, RankRecords], folder: Path) -> dict[int, str]:
    """By rank, the innermost line of its Python stack that is not torch's: ranks are asked by a signal."""
    for records in ranks.values():
        pid = records.header["pid"]
        here = records.header["host"] == socket.gethostname() and _belongs_to(folder, pid)
        if here and stack_file(folder, pid).exists():  # else nobody has set the signal's handler
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGUSR1)
    time.sleep(_STACKS_WITHIN_S)
    found = {rank: _line_in(stack_file(folder, records.header["pid"])) for rank, records in ranks.items()}
    return {rank: line for rank, line in found.items() if line}


def _belongs_to(folder: Path, pid: int) -> bool:
    """Whether the process is of the job that writes there: the number may be a stranger's by now."""
    with suppress(OSError):
        own = {f"{name}={value}".encode() for name, value in Assignment("doctor", folder).environment.items()}
        return own <= set(job.environment_of(Path(f"/proc/{pid}")))
    return False


def _line_in(file: Path) -> str:
    """'train.py, line 31, in main' of a faulthandler's dump, whose innermost frame comes first."""
    lines = file.read_text().splitlines() if file.exists() else []
    frames = [line.strip().removeprefix("File ") for line in lines if line.strip().startswith("File ")]
    own = [frame for frame in frames if "/site-packages/" not in frame and "/ringdp/" not in frame]
    path, _, rest = (own or frames or [""])[0].partition(",")
    return f"{Path(path.strip(chr(34))).name},{rest}" if path else ""
