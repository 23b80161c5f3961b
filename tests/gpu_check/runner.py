"""Runs parts, one after another: each under its limit, all under one, and nothing of a part outlives it.

A part writes what it finds to $OUT/findings.jsonl while it runs (devices/findings.py), so whatever ends it, the rest is
kept. A part of tests that dies or is ended by a test that hangs is started again for the tests that are left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devices.findings import BAD, BEGUN, CUT_OFF, DIED, FAILED, HUNG, PASSED, SKIPPED, Finding, read, record

FINDINGS, LOG = "findings.jsonl", "log.txt"
LEAST_S = 5.0  # with less left nothing is begun
GRACE_S = 2.0  # from the request to end until the next, harder one
LOOK_S = 10.0  # for what is asked beside the parts
MOST_BAD = 4  # findings: a part with more of them says nothing new
TAIL = 400  # lines of its output that are kept: the stacks of many threads
NOT_BEGUN = "not begun"


@dataclass(frozen=True)
class Part:
    """A command and its limit in seconds.

    what: for people. needs: parts without which it is not begun. program, module: what must be there, or it is skipped.
    output: a file that it writes, taken away before. again: it can go on where it was ended (gpu_check.recorder).
    """

    name: str
    what: str
    command: Sequence[str]
    limit_s: float
    needs: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    module: str = ""
    output: Path | None = None
    again: bool = False


@dataclass
class Outcome:
    """How a part ended. `why`: what kept it from passing; `said`: the end of its output then."""

    part: str
    verdict: str
    seconds: float = 0.0
    why: str = ""
    said: str = ""
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        counts = [f"{n} {verdict}" for verdict, n in self.counts().items()]
        return "; ".join([f"{self.part}: {self.verdict}, {self.seconds:.0f} s", *filter(None, [self.why]), *counts])

    def counts(self) -> dict[str, int]:
        """How many findings have which verdict."""
        verdicts = [one.verdict for one in self.findings]
        return {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}

    @staticmethod
    def of(written: dict[str, Any]) -> Outcome:
        """From what asdict() makes of one."""
        return Outcome(**{**written, "findings": [Finding(**one) for one in written["findings"]]})


def missing(part: Part) -> str:
    """What the part cannot do without and is not here, or ''."""
    if part.program and shutil.which(part.program) is None:
        return f"no {part.program}"
    if not part.module:
        return ""
    try:
        command = [part.command[0], "-c", f"import {part.module}"]
        imported = subprocess.run(command, capture_output=True, timeout=LOOK_S).returncode == 0
    except subprocess.TimeoutExpired:
        return f"{part.module} is not imported within {LOOK_S:g} s"
    return "" if imported else f"no {part.module}"


def run(part: Part, out: Path, left_s: float) -> Outcome:
    """Runs a part to its end or to its limit."""
    begin = time.monotonic()
    if why := missing(part):
        return Outcome(part.name, SKIPPED, why=why)
    if left_s < LEAST_S:
        return Outcome(part.name, NOT_BEGUN, why="the time was over")
    file, log = out / FINDINGS, out / LOG
    forget(file, part.name)
    if part.output:
        part.output.unlink(missing_ok=True)
    first, deadline = size_of(log), begin + min(part.limit_s, left_s)
    while True:
        start = size_of(log)
        status = run_once(part, file, log, deadline)
        unfinished = [one for one in findings_of(part, file) if one.verdict == BEGUN]
        for one in unfinished:
            said = tail(log, start)
            record(Finding(one.name, how_it_ended(status, said), text=said, part=part.name), file)
        findings = findings_of(part, file)
        goes_on = part.again and unfinished and sum(one.verdict in BAD for one in findings) < MOST_BAD
        if status is None or not goes_on:
            break
        if deadline - time.monotonic() < LEAST_S:
            status = None
            break
    verdict, why = judged(status, findings)
    said = "" if verdict in (PASSED, SKIPPED) else "\n".join(filter(None, [tail(log, first), xids()]))
    return Outcome(part.name, verdict, time.monotonic() - begin, why, said, findings)


def size_of(log: Path) -> int:
    """Its bytes; 0 where it is not there yet."""
    return log.stat().st_size if log.exists() else 0


def findings_of(part: Part, file: Path) -> list[Finding]:
    """What it has written so far."""
    return [one for one in read(file) if one.part == part.name]


def how_it_ended(status: int | None, said: str) -> str:
    """The verdict of what was running when its process ended with this status; None: at the limit."""
    if status is None:
        return CUT_OFF
    return HUNG if "Timeout (" in said else DIED  # faulthandler's word


def judged(status: int | None, findings: Sequence[Finding]) -> tuple[str, str]:
    """The verdict of a part and why."""
    bad = [one for one in findings if one.verdict in BAD]
    if status is None:
        return CUT_OFF, "at its limit"
    if bad:
        return FAILED, f"{bad[0].name} {bad[0].verdict}"
    if findings and all(one.verdict == SKIPPED for one in findings):
        return SKIPPED, findings[0].text
    if status != 0:
        return FAILED, ended_by(status)
    return PASSED, ""


def ended_by(status: int) -> str:
    """A process's status in words."""
    return f"signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"status {status}"


def run_once(part: Part, file: Path, log: Path, deadline: float) -> int | None:
    """Runs the command; its status, None when it was not done by the deadline, 127 where there is no such program."""
    variables = {"FINDINGS": str(file), "FINDINGS_PART": part.name, "PYTHONUNBUFFERED": "1", **part.variables}
    others = set(descendants())
    with log.open("ab") as stream:
        stream.write(f"\n==== {part.name}: {shlex.join(part.command)}\n".encode())
        stream.flush()
        try:
            process = subprocess.Popen(
                part.command,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        except OSError as error:
            stream.write(f"{part.command[0]}: {error.strerror}\n".encode())
            return 127
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        ask_to_end(process)
        return None
    finally:
        kill_all_but(others)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


def ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """SIGINT, on which pytest tells what it has, then SIGTERM; to the whole group, and no longer than GRACE_S each."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            return


PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on a process whose parent has ended becomes a child of this one, so that it is found and killed, too."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """The processes that this one has started and has not waited for, and those that they have."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found, level = [], {os.getpid()}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        found += sorted(level)
    return found


def kill_all_but(others: set[int]) -> None:
    """Kills the descendants that are none of `others`. One that a driver holds is left after GRACE_S."""
    end = time.monotonic() + GRACE_S
    while (alive := [pid for pid in descendants() if pid not in others]) and time.monotonic() < end:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        for pid in alive:
            with contextlib.suppress(ChildProcessError):  # not this one's child
                os.waitpid(pid, os.WNOHANG)


def forget(file: Path, part: str) -> None:
    """Takes the lines of an earlier run of the part out."""
    kept = [one for one in read(file) if one.part != part]
    file.write_text("")
    for one in kept:
        record(one, file)


def xids() -> str:
    """What the driver has told the kernel of errors, where that may be read."""
    if shutil.which("dmesg") is None:
        return ""
    try:
        said = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", timeout=LOOK_S).stdout
    except subprocess.TimeoutExpired:
        return ""
    return "\n".join([line for line in said.splitlines() if "Xid" in line][-5:])


def tail(log: Path, first: int = 0) -> str:
    """The last lines of what was written from byte `first` on."""
    with log.open("rb") as stream:
        stream.seek(first)
        return "\n".join(stream.read().decode(errors="replace").splitlines()[-TAIL:])


Say = Callable[[list[Outcome], str], None]


def run_all(parts: Sequence[Part], out: Path, limit_s: float, known: Sequence[Outcome], say: Say) -> list[Outcome]:
    """Runs these parts. `known`: outcomes of others, from before; after each part `say` is told all, and its name."""
    out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    outcomes = {outcome.part: outcome for outcome in known}
    for part in parts:
        absent = [name for name in part.needs if name not in outcomes or outcomes[name].verdict != PASSED]
        if absent:
            outcome = Outcome(part.name, NOT_BEGUN, why=f"{absent[0]} has not passed")
        else:
            try:
                outcome = run(part, out, limit_s - (time.monotonic() - begin))
            except BaseException:  # this process is to end
                found = findings_of(part, out / FINDINGS)
                outcomes[part.name] = Outcome(part.name, CUT_OFF, why="gpu-check was ended", findings=found)
                say(list(outcomes.values()), part.name)
                raise
        outcomes[part.name] = outcome
        say(list(outcomes.values()), part.name)
    return list(outcomes.values())
