"""Runs every test suite, shows what failed, and ends with the line 'N passed, N failed, N skipped'.

    suites.py [plain] [python] [thread] [address]        (default: all)
    suites.py everything                                 Python tests with the long ones
    suites.py build thread address                       builds what these run, and says nothing

A suite whose tool is absent is skipped by name and counted once; with CI=true in the environment it fails.
Standard library only: it also runs where nothing may be installed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
SANITIZERS = {"plain": "", "thread": "thread", "address": "address,undefined"}
# Rooms whose tests run in one thread: the thread sanitizer has nothing to find there, and takes minutes to say so.
ONE_THREAD = {"thread": ("plan", "kernels")}
SUPPRESSIONS = ROOT / "tests/cpp/sanitizers.supp"
PYTHON_LIMIT_S = {"python": 60 * 60, "everything": 6 * 3600}
JOBS = 2


@dataclass
class Outcome:
    """Counts of one suite; `note` says why it could not run as a whole."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    note: str = ""


def absent(name: str, tool: str) -> Outcome:
    """A suite that cannot run because a tool is not there."""
    required = os.environ.get("CI") == "true"
    return Outcome(name, failed=int(required), skipped=int(not required), note=f"skipped: no {tool}")


def broken(name: str, why: str) -> Outcome:
    """A suite that did not get as far as its tests."""
    return Outcome(name, failed=1, note=why)


def counted(name: str, report: Path, status: int) -> Outcome:
    """The counts of a JUnit report. A failing status without a failed test is a failure too."""
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        return broken(name, f"no report: {error}")
    outcome = Outcome(name)
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            outcome.skipped += 1
        else:
            outcome.passed += 1
    if status != 0 and outcome.failed == 0:
        outcome.failed, outcome.note = 1, f"exit status {status}"
    if not cases:
        outcome.failed, outcome.note = 1, "no test ran"
    return outcome


def logged(command: list[str], log: Path, *, shown: bool = True) -> int:
    """Runs a command into a log; shows the end of it when the command fails."""
    with log.open("a") as stream:
        status = subprocess.run(command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT).returncode
    if status != 0 and shown:
        print("\n".join(log.read_text(errors="replace").splitlines()[-40:]), flush=True)
    return status


def fixed_addresses() -> list[str]:
    """setarch -R where it is allowed: the thread sanitizer of older compilers fails under strong randomisation."""
    command = ["setarch", os.uname().machine, "-R"]
    works = shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if works else []


def shipped_objects() -> str:
    """The objects of which the extension is made, as a list of CMake's: what it ships is what is tested."""
    script = "import setup; print(*(setup.ROOT / path for path in setup.compile_core()), sep=';')"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def cpp_name(kind: str) -> str:
    return f"C++ ({SANITIZERS[kind] or 'plain'})"


def build(kind: str, *, jobs: int = JOBS, shown: bool = True) -> Outcome | None:
    """Configures and builds the C++ tests under one set of sanitizers; None when they are there."""
    name, cmake = cpp_name(kind), shutil.which("cmake")
    if not cmake or not shutil.which("ctest"):
        return absent(name, "cmake")
    folder, log = BUILD / f"cpp-{kind}", BUILD / f"cpp-{kind}.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    left_out = ";".join(ONE_THREAD.get(kind, ()))
    configure = [cmake, "-S", "tests/cpp", "-B", str(folder), f"-DSANITIZE={SANITIZERS[kind]}"]
    objects = "" if SANITIZERS[kind] else shipped_objects()
    configure += [f"-DLEFT_OUT={left_out}", f"-DCORE_OBJECTS={objects}", *generator]
    if logged(configure, log, shown=shown):
        return broken(name, "does not configure")
    if (folder / "no-googletest").exists():
        return absent(name, "GoogleTest")
    if logged([cmake, "--build", str(folder), "--parallel", str(jobs)], log, shown=shown):
        return broken(name, "does not compile")
    return None


def cpp(kind: str) -> Outcome:
    """Builds and runs the C++ tests under one set of sanitizers."""
    if (failure := build(kind)) is not None:
        return failure
    name, folder, log = cpp_name(kind), BUILD / f"cpp-{kind}", BUILD / f"cpp-{kind}.log"
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    os.environ.update(
        TSAN_OPTIONS=f"suppressions={SUPPRESSIONS}:second_deadlock_stack=1",
        ASAN_OPTIONS="detect_stack_use_after_return=1",
        UBSAN_OPTIONS="print_stacktrace=1",
    )
    # ctest runs inside the folder: its option to name one is younger than the oldest cmake that will do.
    run = ["ctest", "-j", str(JOBS), "--output-on-failure", "--output-junit", str(report)]
    with log.open("a") as stream:
        status = subprocess.run(
            [*fixed_addresses(), *run], cwd=folder, stdout=stream, stderr=subprocess.STDOUT
        ).returncode
    if status != 0:
        print("\n".join(log.read_text(errors="replace").splitlines()[-120:]), flush=True)
    return counted(name, report, status)


def python(name: str) -> Outcome:
    """Runs pytest over tests/, its output shown as it comes."""
    if importlib.util.find_spec("pytest") is None:
        return absent("Python", "pytest")
    report = BUILD / "pytest.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "tests", f"--junit-xml={report}"]
    command += ["-m", ""] if name == "everything" else []
    limit = PYTHON_LIMIT_S[name]
    try:
        status = subprocess.run(command, cwd=ROOT, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        return broken("Python", f"not done after {limit} s")
    return counted("Python", report, status)


@contextmanager
def built_ahead(kinds: list[str]) -> Iterator[None]:
    """What these suites will run is built meanwhile: Python's tests wait for one another for half of their time.

    What is not there at the end of the block is left to the suite, which may take all cores.
    """
    command = ["nice", "-n", "19", sys.executable, __file__, "build", *kinds]
    process = subprocess.Popen(command, cwd=ROOT, preexec_fn=os.setpgrp)
    try:
        yield
    finally:
        end_of(process)


def end_of(leader: subprocess.Popen[bytes]) -> None:
    """Ends the processes of a group, and waits for them: two builds of one folder would spoil it."""
    deadline = time.monotonic() + 10
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGTERM)
        leader.wait()
        while time.monotonic() < deadline:
            os.killpg(leader.pid, 0)
            time.sleep(0.1)
        os.killpg(leader.pid, signal.SIGKILL)


def main(names: list[str]) -> int:
    """Runs the suites of these names, or only builds them; 1 when anything failed."""
    if names[:1] == ["build"]:
        return int(any([build(kind, jobs=1, shown=False) for kind in names[1:]]))
    bin_folder = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([bin_folder, os.environ.get("PATH", "")])
    outcomes = []
    names = names or ["plain", "python", "thread", "address"]
    for at, name in enumerate(names):
        print(f"ringdp: tests {name} ...", flush=True)
        start = time.monotonic()
        if name in PYTHON_LIMIT_S:
            with built_ahead([later for later in names[at + 1 :] if later in SANITIZERS]):
                outcome = python(name)
        else:
            outcome = cpp(name)
        outcomes.append(outcome)
        counts = f"{outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped"
        note = f" - {outcome.note}" if outcome.note else ""
        print(f"ringdp: {outcome.name}: {counts} in {time.monotonic() - start:.0f} s{note}", flush=True)
    passed, failed, skipped = (sum(getattr(o, f) for o in outcomes) for f in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
