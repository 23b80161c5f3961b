"""Runs the job until every rank has made its steps or no rank makes progress, and gathers the evidence."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ringdp.tools.attach import job
from ringdp.tools.attach.assignment import Assignment
from ringdp.tools.attach.records import RankRecords, Reader, absent
from ringdp.tools.doctor.checks.failure import HANGS
from ringdp.tools.doctor.evidence import Baseline, Evidence, Stand
from ringdp.tools.doctor.probes.errors import RINGDP, of_script, stack_file

_RANKS, _LAUNCHER = 60, 30  # lines
_LOGGED = re.compile(r"[IWEC]\d{4} \S+ +\d+ \S*torch/distributed/(elastic|run|launcher)\b")
_TRACEBACK = "Traceback (most recent call last):"


def last_lines(text: str) -> list[str]:
    """torchrun's traceback follows the ranks' own and fills a screen, so it would hide theirs."""
    lines = text.splitlines()
    begin = _launcher_begins(lines)
    ranks = [line for line in lines[:begin] if not _LOGGED.match(line)]
    launcher = [line for line in lines[:begin] if _LOGGED.match(line)] + lines[begin:]
    return [*ranks[-_RANKS:], *launcher[-_LAUNCHER:]]


def _launcher_begins(lines: list[str]) -> int:
    """The line at which its traceback begins; their number where there is none."""
    begins = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    if begins and any("torch/distributed/launcher/api.py" in line for line in lines[begins[-1] :]):
        return begins[-1]
    return len(lines)


OUTPUT = "output.log"
DONE = "every rank has made its steps"
SILENT = "was ended, after ten times --timeout"
_STARTS_WITHIN = 10  # times the patience with a running job: it imports, compiles, downloads
_STACKS_WITHIN_S = 0.5
_APPEAR_WITHIN_S = 10.0  # after the first rank
_FRAME = re.compile(r'\s*File "(.*)", (line \d+ in (.*))')
_WAITS = ("/torch/autograd/", "/torch/distributed/", "/torch/nn/parallel/", RINGDP)  # where ranks meet


def examine(
    command: Sequence[str], assignment: Assignment, steps: int, patience_s: float, baseline: Baseline | None
) -> Evidence:
    """The job's output goes to a file in the folder of the records. OSError when it cannot be started.

    patience_s: without a new record of any rank for so long, once there were some, the job hangs; ten times as long
    is waited for the first one.
    """
    assignment.write_options({"folder": str(assignment.folder), "steps": steps})
    watch = Watch(Reader(assignment.folder), assignment.folder, steps, patience_s)
    with (assignment.folder / OUTPUT).open("wb") as output:
        ended = job.run(command, assignment.environment, watch.tick, output, output)
    # What ranks say while they are ended is about their end: one is gone before the other.
    ranks = watch.ranks if ended.stopped else watch.reader.read()
    said = (assignment.folder / OUTPUT).read_text(errors="replace")
    died = None if ended.stopped else died_first(said)
    return Evidence(ranks, baseline, ended.stopped, ended.status, watch.stacks, watch.idle, died)


_TORCHRUN = re.compile(r"Root Cause \(first observed failure\):.*?rank +: (\d+) .*?exitcode +: (-?\d+)", re.DOTALL)
_SPAWN = re.compile(r"process (\d+) terminated with (exit code \d+|signal \w+)")


def died_first(output: str) -> tuple[int, str] | None:
    """The rank that ended first, and how, as torchrun or torch.multiprocessing.spawn says it; None where none does."""
    if found := _TORCHRUN.search(output):
        code = int(found[2])
        return int(found[1]), f"signal {-code}" if code < 0 else f"exit code {code}"
    if found := _SPAWN.search(output):
        return int(found[1]), found[2]
    return None


class Watch:
    """Decides when the run has been long enough. `ranks`: their records so far.

    `stacks`, `idle`: of ranks without progress, as in Evidence.
    """

    def __init__(self, reader: Reader, folder: Path, steps: int, patience_s: float) -> None:
        self.reader = reader
        self.ranks: dict[int, RankRecords] = {}
        self.stacks: dict[int, Stand] = {}
        self.idle: dict[int, float] = {}
        self._folder = folder
        self._steps = steps
        self._patience_s = patience_s
        self._moved: dict[int, tuple[int, float]] = {}  # by rank: lines, and since when it has so many
        self._began = time.monotonic()
        self._first = 0.0  # when there was a rank

    def tick(self) -> str:
        """Why to end the job now; '' for no reason."""
        ranks = self.ranks = self.reader.read()
        now = time.monotonic()
        for rank, records in ranks.items():
            if records.lines != self._moved.get(rank, (0, 0.0))[0]:
                self._moved[rank] = records.lines, now
        if ranks and self._all_done(ranks):
            return DONE
        idle = now - max((since for _, since in self._moved.values()), default=self._began)
        if not ranks and idle > _STARTS_WITHIN * self._patience_s:
            return SILENT
        if ranks and idle > self._patience_s:
            self.stacks = stacks_of(ranks, self._folder)
            self.idle = {rank: now - since for rank, (_, since) in self._moved.items()}
            return HANGS
        return ""

    def _all_done(self, ranks: Mapping[int, RankRecords]) -> bool:
        self._first = self._first or time.monotonic()
        wanted = self._steps
        if absent(ranks):
            # They write elsewhere, or nothing; or nothing keeps ranks together, and these have not started yet.
            if time.monotonic() < self._first + min(_APPEAR_WITHIN_S, self._patience_s):
                return False
            wanted = 2 * self._steps
        return all(len(records.of("step")) >= wanted for records in ranks.values())


def stacks_of(ranks: Mapping[int, RankRecords], folder: Path) -> dict[int, Stand]:
    """By rank, the innermost line of its Python stack that is the script's own: ranks are asked by a signal."""
    for records in ranks.values():
        pid = records.header["pid"]
        here = records.header["host"] == socket.gethostname() and _belongs_to(folder, pid)
        if here and stack_file(folder, pid).exists():  # without it the process has no handler of the signal
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGUSR1)
    time.sleep(_STACKS_WITHIN_S)
    found = {rank: _stand_of(records.header, folder) for rank, records in ranks.items()}
    return {rank: stand for rank, stand in found.items() if stand}


def _stand_of(header: Mapping[str, Any], folder: Path) -> Stand | None:
    pid = header["pid"]
    here = header["host"] == socket.gethostname() and _belongs_to(folder, pid)
    if here and job.is_stopped(pid):
        return Stand("", stopped=True)
    return _stand_in(stack_file(folder, pid))


def _belongs_to(folder: Path, pid: int) -> bool:
    """Whether the process is of the job that writes there: the number may be a stranger's by now."""
    with suppress(OSError):
        own = {f"{name}={value}".encode() for name, value in Assignment("doctor", folder).environment.items()}
        return own <= set(job.environment_of(Path(f"/proc/{pid}")))
    return False


def _stand_in(file: Path) -> Stand | None:
    """Reads a faulthandler's dump, whose innermost frame comes first; None where there is none."""
    lines = file.read_text().splitlines() if file.exists() else []
    frames = [frame.groups() for line in lines if (frame := _FRAME.match(line))]
    if not frames:
        return None
    path, line, _ = next((frame for frame in frames if of_script(frame[0])), frames[0])
    innermost, _, function = frames[0]
    waits = any(part in innermost for part in _WAITS)
    call = "backward" if "/torch/autograd/" in innermost else function.lstrip("_")
    return Stand(f"{Path(path).name}, {line}", call if waits else "")
