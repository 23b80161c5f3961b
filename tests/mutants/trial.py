"""One selection of tests on the copy as it is now, and what its outcome says about a mutant."""

from __future__ import annotations

import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from mutant import Mutant, Selection
from processes import Ended, run
from working_copy import WorkingCopy

BUILD_LIMIT_S = 3600
TESTS_LIMIT_S = 300
SUITE_LIMIT_S = 3600
# What `make test` does to build and run the C++ tests of one module; the filter is in the environment.
SUITES_OF_MAKE = """
import json, sys
sys.path.insert(0, ".ci")
import suites
kind, module, suites.JOBS = sys.argv[1], sys.argv[2], int(sys.argv[3])
outcome = suites.Outcome(kind)
suites.cpp(kind, [module])(outcome)
print(json.dumps([outcome.passed, outcome.failed]))
"""
_NO_TEST = "-*"  # a filter that leaves the building


@dataclass(frozen=True)
class Outcome:
    """What became of a selection of tests. `broken` says why it could not be run."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    broken: str = ""
    hung: bool = False


@dataclass(frozen=True)
class Verdict:
    """caught, missed, hung or broken, and by what or why."""

    word: str
    reason: str


def judge(outcome: Outcome) -> Verdict:
    """What this outcome, on the tree with the fault, says."""
    if outcome.hung:
        return Verdict("hung", "the tests were ended at the runner's limit, and none of them has reported it")
    if outcome.broken:
        return Verdict("broken", outcome.broken)
    if outcome.failed:
        more = f" and {len(outcome.failed) - 1} more" if len(outcome.failed) > 1 else ""
        return Verdict("caught", outcome.failed[0] + more)
    if outcome.passed == 0:
        return Verdict("broken", "no test ran")
    return Verdict("missed", f"{outcome.passed} tests pass")


def why_not_clean(outcome: Outcome) -> str:
    """Why tests are no judge of a fault: what they do without it. "" when they pass."""
    word = judge(outcome)
    return "" if word.word == "missed" else f"without the fault: {word.word} ({word.reason})"


class Bench:
    """Builds the copy and runs tests on it."""

    def __init__(self, copy: WorkingCopy, folder: Path, jobs: int) -> None:
        self.copy, self.folder, self.jobs = copy, folder, jobs
        self._built: dict[str, int] = {}  # what, at which state of csrc/

    def environment(self, selection: Selection | None, mutant: Mutant | None = None) -> dict[str, str]:
        """Of every command: the copy's package comes first, and nothing of this shell's settings is in the way."""
        of_shell = ("RINGDP_", "PYTHON", "GTEST_")
        mine = {name: value for name, value in os.environ.items() if not name.startswith(of_shell)}
        mine["PYTHONPATH"] = str(self.copy.tree / "python")
        mine["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        mine["MAX_JOBS"] = str(self.jobs)
        if not (mutant and mutant.touches("csrc/device/cuda/") and mutant.caught_by.suite == "python"):
            mine["RINGDP_CUDA"] = "off"
        if selection and selection.suite != "python":
            mine["GTEST_FILTER"] = selection.words[1]
        return mine

    def _run(self, command: list[str], log: str, limit_s: float, env: dict[str, str]) -> Ended:
        return run(command, cwd=self.copy.tree, env=env, limit_s=limit_s, log=self.folder / "logs" / f"{log}.log")

    def build(self, selection: Selection, log: str, mutant: Mutant | None = None) -> str:
        """Builds what these tests need, where something changed; why it cannot, or ""."""
        what = "extension" if selection.suite == "python" else f"{selection.suite} {selection.words[0]}"
        if self._built.get(what) == self.copy.csrc_changes:
            return ""
        self._built.pop(what, None)
        commands = [["-c", SUITES_OF_MAKE, selection.suite, selection.words[0], str(self.jobs)]]
        if what == "extension":
            commands = [["setup.py", "-q", "build_ext", "--inplace"]]
            if not any(self.copy.tree.glob("python/*.egg-info/entry_points.txt")):
                commands.append(["setup.py", "-q", "egg_info"])  # torch finds the backend by it
        for command in commands:
            environment = {**self.environment(None, mutant), "GTEST_FILTER": _NO_TEST}
            ended = self._run([sys.executable, *command], f"{log}-build", BUILD_LIMIT_S, environment)
            if ended.status is None:
                return f"not built after {BUILD_LIMIT_S} s"
            if ended.status != 0:
                return f"does not compile: {first_error(ended.output)}"
        self._built[what] = self.copy.csrc_changes
        return ""

    def test(self, selection: Selection, log: str, mutant: Mutant | None = None) -> Outcome:
        """Builds and runs these tests."""
        if why := self.build(selection, log, mutant):
            return Outcome(broken=why)
        return self._pytest(selection, log, mutant) if selection.suite == "python" else self._cpp(selection, log)

    def _pytest(self, selection: Selection, log: str, mutant: Mutant | None) -> Outcome:
        report = self.folder / "logs" / f"{log}.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-x", f"--junit-xml={report}", *selection.words]
        ended = self._run(command, log, TESTS_LIMIT_S, self.environment(selection, mutant))
        if ended.status is None:
            return Outcome(hung=True)
        if ended.status not in (0, 1):
            return Outcome(broken=f"pytest ended with status {ended.status}: {last_line(ended.output)}")
        passed, failed = 0, []
        for case in ElementTree.parse(report).iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(f"{case.get('classname', '').split('.')[-1]}: {case.get('name')}")
            else:
                passed += case.find("skipped") is None
        return Outcome(passed, failed)

    def _cpp(self, selection: Selection, log: str) -> Outcome:
        kind, module = selection.suite, selection.words[0]
        command = [sys.executable, "-c", SUITES_OF_MAKE, kind, module, str(self.jobs)]
        ended = self._run(command, log, TESTS_LIMIT_S, self.environment(selection))
        if ended.status is None:
            return Outcome(hung=True)
        if ended.status != 0:
            return Outcome(broken=f"the suite ended with status {ended.status}: {last_line(ended.output)}")
        passed, count = json.loads(last_line(ended.output))
        names = re.findall(rf"^FAILED {module}: (.+)$", ended.output, re.MULTILINE)
        names = names or re.findall(r"^FAILED (.+)$", ended.output, re.MULTILINE)  # it has crashed
        said = self.copy.tree / "build" / f"cpp-{kind}" / f"{module}.log"
        found: list[str] = []
        if count and kind != "plain" and said.exists():
            found = reports(said.read_text(errors="replace").replace(f"{self.copy.tree}/", ""))
        return Outcome(passed, (found or names or ["a test without a name"]) if count else [])

    def whole_suite(self, suite: str, log: str) -> Outcome:
        """Runs all of one suite of `make test`."""
        command = [sys.executable, ".ci/suites.py", "test", suite]
        ended = self._run(command, f"{log}-{suite}", SUITE_LIMIT_S, self.environment(None))
        if ended.status is None:
            return Outcome(hung=True)
        totals = re.search(r"(\d+) passed, (\d+) failed, \d+ skipped$", last_line(ended.output))
        if not totals:
            return Outcome(broken=f"the suite ended with status {ended.status}: {last_line(ended.output)}")
        names = re.findall(r"^FAILED (.+)$", ended.output, re.MULTILINE) or ["a test without a name"]
        return Outcome(int(totals[1]), names if int(totals[2]) else [])


def reports(text: str) -> list[str]:
    """What sanitizers said, each with the test that ran then."""
    found, test = [], "?"
    for line in text.splitlines():
        if line.startswith("[ RUN      ]"):
            test = line.split("]")[1].strip()
        elif "SUMMARY: " in line:
            found.append(f"{test}: {line.partition('SUMMARY: ')[2].partition(' (')[0]}")
        elif ": runtime error: " in line:
            found.append(f"{test}: {line.rpartition(': runtime error: ')[2]}")
    return found


def first_error(output: str) -> str:
    """The line of a compiler's output that says why."""
    lines = [line for line in output.splitlines() if "error:" in line or "does not" in line]
    return lines[0] if lines else last_line(output)


def last_line(output: str) -> str:
    """The last line with something in it."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
