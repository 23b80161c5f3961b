"""Builds, tests and measures on a machine with a GPU, in less than nine minutes: `make gpu-check VENV=none`.

    gpu_check.py PYTHON [NAME=VALUE ...]        (the interpreter with torch, and variables for `make build`)

Parts come in order of importance, each under a limit of its own and all under one; what a part has found is in the
folder $OUT, else build/gpu-check, even when it was cut off. The last line is the verdict. Standard library only.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 520.0  # for all parts together
LEAST_S = 5.0  # with less left a part is not begun
GRACE_S = 5.0  # between the request to end and the kill
TAIL = 25  # lines of a part's output that are shown when it fails
CUDA = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}  # streams that share a hardware queue would wait for one another


@dataclass(frozen=True)
class Part:
    """A command and its limit in seconds.

    needed: what comes later is not begun without it. wants: a module of Python without which it is skipped.
    """

    name: str
    command: Sequence[str]
    limit_s: float
    needed: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    wants: str = ""


@dataclass
class Outcome:
    """How a part ended: passed, failed, cut off, not begun, or skipped and why."""

    name: str
    verdict: str
    seconds: float = 0.0
    status: int | None = None

    def __str__(self) -> str:
        end = "" if self.status in (0, None) else f" with status {self.status}"
        return f"gpu-check: {self.name}: {self.verdict}{end}, {self.seconds:.0f} s"


def parts(python: str, assignments: Sequence[str], out: Path) -> list[Part]:
    """What is run, the most important first."""
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    speed = [python, "benchmarks/gpu.py", "--check", "--seconds", "130"]
    suite = [python, "-m", "tests.conformance", "--device", "cuda", "--json"]
    return [
        Part("device", ["nvidia-smi"], 20, needed=True),
        Part("build", ["make", "--no-print-directory", "build", *assignments], 200, True, {"RINGDP_CUDA": "on"}),
        Part("info", [python, "-m", "ringdp", "info"], 30),
        Part("library", [*tests, "tests/device/python", f"--junit-xml={out}/library.xml"], 60),
        Part("tests", [*tests, "tests/device/gpu", f"--junit-xml={out}/tests.xml"], 170),
        Part("speed", [*speed, "--json", f"{out}/gpu.json", "--plot", f"{out}/gpu.png"], 170),
        Part("torch's tests", [*suite, "--timeout", "20"], 90, wants="expecttest"),
    ]


def run(part: Part, log: Path, left_s: float) -> Outcome:
    """Runs a part into the log, and ends all of its processes at the limit."""
    if left_s < LEAST_S:
        return Outcome(part.name, "not begun")
    if part.wants and subprocess.run([part.command[0], "-c", f"import {part.wants}"], capture_output=True).returncode:
        return Outcome(part.name, f"skipped: no {part.wants}")
    start, first = time.monotonic(), log.stat().st_size if log.exists() else 0
    with log.open("ab") as stream:
        stream.write(f"\n==== {part.name}: {shlex.join(part.command)}\n".encode())
        stream.flush()
        try:
            environment = {**os.environ, **CUDA, **part.variables, "PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(
                part.command, cwd=ROOT, env=environment, stdout=stream, stderr=stream, start_new_session=True
            )
        except OSError as error:
            stream.write(f"{error}\n".encode())
            return Outcome(part.name, f"failed: {error.strerror} {part.command[0]}", status=127)
    try:
        status = process.wait(min(part.limit_s, left_s))
        verdict = "passed" if status == 0 else "failed"
    except subprocess.TimeoutExpired:
        status, verdict = None, "cut off"
    end_session(process)
    if verdict != "passed":
        with log.open("rb") as stream:
            stream.seek(first)
            print("\n".join(stream.read().decode(errors="replace").splitlines()[-TAIL:]), flush=True)
    return Outcome(part.name, verdict, time.monotonic() - start, status)


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Ends whatever of the part is left, ranks included."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGTERM:
            time.sleep(0.2)  # for children that end as their parent has


def check(python: str, assignments: Sequence[str], out: Path) -> list[Outcome]:
    """Runs all parts; outcomes are written down as they come."""
    out.mkdir(parents=True, exist_ok=True)
    log, begin = out / "log.txt", time.monotonic()
    log.write_text("")
    outcomes: list[Outcome] = []
    broken = False
    for part in parts(python, assignments, out):
        left = 0.0 if broken else LIMIT_S - (time.monotonic() - begin)
        outcome = run(part, log, left)
        broken = broken or (part.needed and outcome.verdict != "passed")
        outcomes.append(outcome)
        print(outcome, flush=True)
        (out / "summary.json").write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n")
    return outcomes


def main(arguments: list[str]) -> int:
    """0 when every part has passed, but for what was skipped."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(os.environ.get("OUT") or ROOT / "build/gpu-check").absolute()
    outcomes = check(arguments[0], arguments[1:], out)
    passed = sum(outcome.verdict == "passed" for outcome in outcomes)
    print(f"gpu-check: {passed} of {len(outcomes)} parts passed; what they found is in {out}")
    return int(any(not outcome.verdict.startswith(("passed", "skipped")) for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
