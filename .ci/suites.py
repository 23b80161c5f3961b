"""Runs suites of tests, shows what failed, and ends with the line 'N passed, N failed, N skipped'.

    suites.py test [SUITE ...]     what `make test` runs: a slice of everything, about twelve minutes on two cores
    suites.py all [PART ...]       what `make test-all` runs: everything; a part that has passed on these very files is
                                   not run again unless it is named
    suites.py list                 the suites and parts, and what each is

A suite whose tool is absent is skipped by name and counted once; with CI=true in the environment it fails. Figures of
every suite and its slowest tests are written to build/test-report.json. Standard library only: it also runs where
nothing may be installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
import venv
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
SANITIZERS = {"plain": "", "thread": "thread", "address": "address,undefined"}
_TESTED = {
    name: module["suites"]
    for name, module in reversed(json.loads((ROOT / "csrc/modules.json").read_text())["modules"].items())
    if "suites" in module
}
MODULES = tuple(_TESTED)  # the longest first
# `make test` runs as they ship: modules that compute, and those that no sanitizer runs. `make test-all` runs all.
AS_SHIPPED = tuple(name for name in MODULES if "plain" in _TESTED[name])
# Modules with threads: the thread sanitizer has nothing to find in others. Emulated devices only in `make test-all`.
WITH_THREADS = tuple(name for name in MODULES if "thread" in _TESTED[name])
# Modules with memory handled by hand, or bytes that come from elsewhere; likewise.
WITH_MEMORY = (*(name for name in MODULES if "address" in _TESTED[name]), "fuzz")
# One thread, whose functions keep no address of a variable: fake stacks would only take half of their time.
WITHOUT_FAKE_STACKS = ("plan", "kernels")
SUPPRESSIONS = ROOT / "tests/cpp/sanitizers.supp"
OTHER_PACKAGES = ("setuptools>=70.1", "wheel", "ninja>=1.11", "numpy>=1.26", "pytest>=7.4", "pytest-xdist>=3.5")
OTHER_PACKAGES += ("expecttest>=0.2", "rich>=13", "matplotlib>=3.7")
OTHER_TESTS = ("tests/parity", "tests/python/reducer")
PROGRAM_LIMIT_S = 900
PYTEST_LIMIT_S = 7200  # for what hangs: a busy machine takes twice as long as an idle one
JOBS = 2
WORKERS = 3  # of pytest: at two, their ranks wait so often that the two cores were idle for half of the time
SHOWN_LINES = 60


@dataclass
class Outcome:
    """Counts and seconds of one suite; `note` says why it could not run as a whole."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    note: str = ""
    build_s: float = 0.0
    tests_s: float = 0.0
    slowest: list[tuple[str, float]] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        built = f"built in {self.build_s:.0f} s, " if self.build_s >= 0.5 else ""
        note = f" - {self.note}" if self.note else ""
        return f"ringdp: {self.name}: {counts}; {built}tests {self.tests_s:.0f} s{note}"


@dataclass(frozen=True)
class Suite:
    """Something that can be run by name."""

    name: str
    what: str
    run: Callable[[Outcome], None]


class Missing(Exception):
    """A tool that is not there."""


class Broken(Exception):
    """Why a suite did not get as far as its tests."""


def tail(log: Path) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]) if log.exists() else ""


def add_report(outcome: Outcome, report: Path, prefix: str = "") -> int:
    """Adds the counts of a JUnit report, shows its failures; how many there were. OSError or ParseError without one."""
    failed = 0
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{prefix}{case.get('classname', '')}.{case.get('name', '')}"
        said = [*case.iter("failure"), *case.iter("error")]
        if said:
            failed += 1
            if prefix:  # pytest shows its own
                print(f"FAILED {name}", *((e.text or e.get("message") or "") for e in said), sep="\n", flush=True)
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            outcome.skipped += 1
        else:
            outcome.passed += 1
        outcome.slowest.append((name, float(case.get("time") or 0)))
    outcome.failed += failed
    outcome.slowest = sorted(outcome.slowest, key=lambda pair: -pair[1])[:20]
    return failed


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


def stand_in() -> str:
    """The stand-in of CUDA that the Python tests use, so that it is compiled once; empty where they cannot have it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "tests/device/stand_in/stand_in.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def build_programs(kind: str, modules: Sequence[str], *, long: bool) -> Path:
    """Configures and builds the C++ test programs of these modules under one set of sanitizers; where they are."""
    unity = not long or kind != "plain"
    cmake = shutil.which("cmake")
    if not cmake:
        raise Missing("cmake")
    folder = BUILD / (f"cpp-{kind}" if unity else f"cpp-{kind}-by-file")
    log = folder.with_suffix(".log")
    log.parent.mkdir(exist_ok=True)
    configure = [cmake, "-S", "tests/cpp", "-B", str(folder), f"-DSANITIZE={SANITIZERS[kind]}"]
    configure += [f"-DMODULES={';'.join(modules)}", f"-DUNITY={int(unity)}", f"-DLONG={int(long)}"]
    configure += [f"-DCORE_OBJECTS={'' if SANITIZERS[kind] else shipped_objects()}"]
    if "device" in modules and not SANITIZERS[kind]:
        configure += [f"-DSTAND_IN={stand_in()}"]
    configure += ["-G", "Ninja"] if shutil.which("ninja") else []
    configure += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    with log.open("w") as stream:
        # Compilers leave the cores to the Python tests that run at the same time.
        build = [*(["nice"] if shutil.which("nice") else []), cmake, "--build", str(folder), "--parallel", str(JOBS)]
        for command in (configure, build):
            if subprocess.run(command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT).returncode != 0:
                stream.flush()
                print(tail(log), flush=True)
                raise Broken("does not configure" if command is configure else "does not compile")
            if (folder / "no-googletest").exists():
                raise Missing("GoogleTest")
    return folder


def run_program(folder: Path, module: str, environment: dict[str, str], launcher: list[str]) -> int | None:
    """Runs one test program; its status, None when it was not done in time."""
    report, log = folder / f"{module}.xml", folder / f"{module}.log"
    report.unlink(missing_ok=True)
    stacks = {"ASAN_OPTIONS": f"detect_stack_use_after_return={int(module not in WITHOUT_FAKE_STACKS)}"}
    command = [*launcher, str(folder / f"{module}_test"), f"--gtest_output=xml:{report}"]
    with log.open("w") as stream:
        try:
            return subprocess.run(
                command,
                cwd=folder,
                env={**environment, **stacks},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=PROGRAM_LIMIT_S,
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def add_program(outcome: Outcome, folder: Path, module: str, status: int | None) -> None:
    """Adds what a test program has reported; without a report, or with a status of its own, it is a failure itself."""
    try:
        failed = add_report(outcome, folder / f"{module}.xml", f"{module}: ")
    except (OSError, ElementTree.ParseError):
        failed = None
    if failed is None or (status != 0 and not failed):
        how = f"not done after {PROGRAM_LIMIT_S} s" if status is None else f"ended with status {status}"
        outcome.failed += 1
        print(f"FAILED {module}_test {how}\n{tail(folder / f'{module}.log')}", flush=True)


def cpp(kind: str, modules: Sequence[str], *, long: bool = False) -> Callable[[Outcome], None]:
    """The C++ tests of these modules, a process for each; `long`: all cells, `plain` by single files."""

    def run(outcome: Outcome) -> None:
        start = time.monotonic()
        folder = build_programs(kind, modules, long=long)
        built = time.monotonic()
        outcome.build_s = built - start
        environment = {
            **os.environ,
            "RINGDP_TEST_LONG": str(int(long)),
            "TSAN_OPTIONS": f"suppressions={SUPPRESSIONS}:second_deadlock_stack=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        launcher = fixed_addresses() if kind == "thread" else []
        with ThreadPoolExecutor(JOBS) as pool:
            statuses = list(pool.map(lambda module: run_program(folder, module, environment, launcher), modules))
        for module, status in zip(modules, statuses, strict=True):
            add_program(outcome, folder, module, status)
        outcome.tests_s = time.monotonic() - built

    return run


def pytest(*arguments: str) -> Callable[[Outcome], None]:
    """pytest with these arguments on some workers, its output shown as it comes."""

    def run(outcome: Outcome) -> None:
        if importlib.util.find_spec("pytest") is None:
            raise Missing("pytest")
        report = BUILD / f"{outcome.name}.xml"
        report.parent.mkdir(exist_ok=True)
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *arguments]
        if importlib.util.find_spec("xdist") is not None:
            command += ["-n", str(WORKERS), "--dist", "worksteal"]
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}  # the cores are more ranks' than one
        start = time.monotonic()
        try:
            status = subprocess.run(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, timeout=PYTEST_LIMIT_S
            ).returncode
        except subprocess.TimeoutExpired:
            raise Broken(f"not done after {PYTEST_LIMIT_S} s") from None
        outcome.tests_s = time.monotonic() - start
        try:
            failed = add_report(outcome, report)
        except (OSError, ElementTree.ParseError) as error:
            raise Broken(f"no report: {error}") from None
        if status != 0 and not failed:
            raise Broken(f"exit status {status}")

    return run


def other_torch(version: str, tests: Sequence[str], outcome: Outcome) -> None:
    """Builds the sources for that torch in an environment of its own, and runs there what shows its bits."""
    folder = BUILD / f"torch-{version}"
    python = folder / "bin/python"
    log = BUILD / f"{outcome.name}.log"
    log.parent.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # with VENV=none: ours

    def succeeds(*arguments: str) -> bool:
        with log.open("a") as stream:
            command = [str(python), "-m", *arguments]
            return subprocess.run(command, cwd=ROOT, env=environment, stdout=stream, stderr=stream).returncode == 0

    start = time.monotonic()
    log.unlink(missing_ok=True)
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        if not succeeds("pip", "install", "-q", f"torch=={version}", *OTHER_PACKAGES):
            raise Missing(f"torch {version} from pip ({log.relative_to(ROOT)})")
        (folder / "complete").touch()
    if not succeeds("pip", "install", "--no-build-isolation", "--no-deps", "--force-reinstall", "-v", str(ROOT)):
        print(tail(log), flush=True)
        raise Broken(f"does not build against torch {version}")
    built = time.monotonic()
    outcome.build_s = built - start
    for command in (("ringdp", "selftest"), ("tests.conformance", "--world-size", "2")):
        if succeeds(*command):
            outcome.passed += 1
        else:
            outcome.failed += 1
            print(f"FAILED {' '.join(command)}\n{tail(log)}", flush=True)
    report = BUILD / f"{outcome.name}.xml"
    report.unlink(missing_ok=True)
    succeeds("pytest", "-q", f"--junit-xml={report}", "-n", str(JOBS), "--dist", "worksteal", *tests)
    try:
        if add_report(outcome, report):
            print(tail(log), flush=True)
    except (OSError, ElementTree.ParseError) as error:
        print(tail(log), flush=True)
        raise Broken(f"no report of pytest: {error}") from None
    outcome.tests_s = time.monotonic() - built


# torch 2.11 itself refuses bucket_cap_mb=0.
OLDEST_TORCH = partial(other_torch, "2.11.0", (*OTHER_TESTS, "--ignore=tests/parity/test_random_models.py"))
# The tests of the backend read Work.exception(), which Python cannot with 2.11.
NEWER_TORCH = partial(other_torch, "2.14.1", (*OTHER_TESTS, "tests/python/backend"))

SUITES = (
    Suite("plain", "C++ tests of modules that compute, as they ship", cpp("plain", AS_SHIPPED)),
    Suite("thread", "C++ tests of modules with threads, under the thread sanitizer", cpp("thread", WITH_THREADS)),
    Suite(
        "address",
        "C++ tests of modules with memory handled by hand, under the address and undefined-behaviour sanitizers",
        cpp("address", WITH_MEMORY),
    ),
    Suite("python", "Python tests but the long ones", pytest("tests")),
)
PARTS = (
    Suite("plain", "C++ tests, every cell, every file compiled by itself", cpp("plain", MODULES, long=True)),
    Suite("thread", "the same under the thread sanitizer", cpp("thread", ("device", *WITH_THREADS), long=True)),
    Suite("address", "the same under the address and UB sanitizers", cpp("address", (*MODULES, "fuzz"), long=True)),
    Suite("python", "Python tests with the long ones", pytest("tests", "-m", "", "--ignore=tests/parity")),
    Suite("parity", "N ranks against one process, every cell", pytest("tests/parity", "-m", "")),
    Suite("torch-2.11", "the sources against torch 2.11: selftest, torch's tests, parity", OLDEST_TORCH),
    Suite("torch-2.14", "the same against torch 2.14", NEWER_TORCH),
)


def tree() -> str:
    """A digest of all files that are the project's; "" where git is not there to list them."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    digest = hashlib.sha256()
    for name in sorted(listed.decode().split("\0")):
        path = ROOT / name
        if name and path.is_file():
            digest.update(f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def run_suite(suite: Suite) -> Outcome:
    """Runs one; it always has a count."""
    outcome = Outcome(suite.name)
    print(f"ringdp: {suite.name}: {suite.what} ...", flush=True)
    try:
        suite.run(outcome)
        if outcome.passed + outcome.failed == 0:
            raise Broken("no test ran")
    except Missing as tool:
        required = os.environ.get("CI") == "true"
        outcome.failed, outcome.skipped = int(required), int(not required)
        outcome.note = f"skipped: no {tool}"
    except Broken as why:
        outcome.failed, outcome.note = outcome.failed + 1, str(why)
    print(outcome, flush=True)
    return outcome


def run_side_by_side(suites: Sequence[Suite]) -> list[Outcome]:
    """Python's on one side, where ranks wait for each other half of the time; on the other C++'s, one by one."""
    sides = [[suite for suite in suites if (suite.name == "python") == python] for python in (True, False)]
    with ThreadPoolExecutor(len(sides)) as pool:
        halves = list(pool.map(lambda side: [run_suite(suite) for suite in side], sides))
    names = [suite.name for suite in suites]
    return sorted(itertools.chain(*halves), key=lambda outcome: names.index(outcome.name))


def run_all(suites: Sequence[Suite], kept: Path, again: bool) -> list[Outcome]:
    """Runs these; those whose outcome in the folder `kept` is of this tree and had no failure, only if `again`."""
    now = tree()
    outcomes = []
    for suite in suites:
        file = kept / f"{suite.name}.json"
        before = json.loads(file.read_text()) if file.exists() else {}
        if not again and now and before.get("tree") == now and before["outcome"]["failed"] == 0:
            outcomes.append(Outcome(**before["outcome"]))
            print(f"{outcomes[-1]} (run before on these files)", flush=True)
            continue
        outcomes.append(run_suite(suite))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"tree": now, "outcome": asdict(outcomes[-1])}))
    return outcomes


def main(arguments: list[str]) -> int:
    """Runs the suites of these names; 1 when anything failed, 2 when there is no such suite."""
    sets = {"test": SUITES, "all": PARTS}
    if arguments == ["list"]:
        for word, suites in sets.items():
            print(f"suites.py {word}", *(f"  {suite.name:11}{suite.what}" for suite in suites), sep="\n")
        return 0
    if not arguments or arguments[0] not in sets:
        print(__doc__, file=sys.stderr)
        return 2
    suites = {suite.name: suite for suite in sets[arguments[0]]}
    names = arguments[1:] or list(suites)
    for name in names:
        if name not in suites:
            print(f"invalid suite '{name}' (expected one of: {', '.join(suites)})", file=sys.stderr)
            return 2
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    chosen = [suites[name] for name in names]
    if arguments[0] == "all":
        outcomes = run_all(chosen, BUILD / "test-all", again=bool(arguments[1:]))
    else:
        outcomes = run_side_by_side(chosen)
    print("", *outcomes, sep="\n")
    BUILD.mkdir(exist_ok=True)
    (BUILD / "test-report.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    passed, failed, skipped = (sum(getattr(o, f) for o in outcomes) for f in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
