"""The runner of gpu-check: a part ends at its limit with all its processes, and what it had found is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from devices.findings import BEGUN, CUT_OFF, DIED, FAILED, HUNG, PASSED, SKIPPED, read

from gpu_check import runner
from gpu_check.parts import ROOT, pytest_command
from gpu_check.runner import NOT_BEGUN, Outcome, Part, run, run_all

PATHS = {"PYTHONPATH": f"{ROOT}/tests:{ROOT}/benchmarks"}
LIMIT_S = 60.0
SOON = {"HANG_S": "3"}  # where something hangs; a busy machine can take twice that to read a file of tests


def python(code: str, **options: object) -> Part:
    return Part("one", "", [sys.executable, "-c", code], LIMIT_S, variables=PATHS, **options)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def has_ended(pid: int) -> bool:
    """Or does soon."""
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_alive(pid)


@pytest.fixture
def limit_is_over_when(monkeypatch) -> Callable[[Callable[[], bool]], None]:
    """limit_is_over_when(predicate): from then on, whatever the clock says."""

    def replace(is_over: Callable[[], bool]) -> None:
        class Process(subprocess.Popen):
            limited = False

            def wait(self, timeout: float | None = None) -> int:
                if self.limited:
                    return super().wait(timeout)
                Process.limited = True
                while not is_over():
                    time.sleep(0.01)
                raise subprocess.TimeoutExpired(self.args, timeout)

        monkeypatch.setattr(runner.subprocess, "Popen", Process)

    return replace


@pytest.fixture
def run_tests(tmp_path) -> Callable[..., Outcome]:
    """run_tests(code, ...): the outcome of a part that runs these tests of a file alone."""

    def run_file(code: str, **variables: str) -> Outcome:
        (tmp_path / "test_some.py").write_text(
            "import os, signal, threading, time\nimport pytest\n" + textwrap.dedent(code)
        )
        command = pytest_command(
            sys.executable, "-c", os.devnull, f"--rootdir={tmp_path}", str(tmp_path / "test_some.py")
        )
        return run(
            Part("one", "", command, LIMIT_S, variables={**PATHS, "HANG_S": "30", **variables}, again=True),
            tmp_path,
            100,
        )

    return run_file


def verdicts(outcome: Outcome) -> dict[str, str]:
    """By the name of the test alone."""
    return {one.name.partition("::test_")[2]: one.verdict for one in outcome.findings}


@pytest.mark.parametrize(
    ("code", "verdict", "why"),
    [
        ("pass", PASSED, ""),
        ("exit(3)", FAILED, "status 3"),
        ("import os; os.abort()", FAILED, "signal 6 (SIGABRT)"),
    ],
)
def test_a_part_ends_with_its_status(tmp_path, code, verdict, why):
    outcome = run(python(code), tmp_path, 30)
    assert (outcome.verdict, outcome.why) == (verdict, why)


LEAVES_ITS_SESSION = """
import os, signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)
print(f'{child.pid}.', flush=True)
time.sleep(60)
"""


def test_a_part_is_cut_off_with_its_children_wherever_they_are(tmp_path, limit_is_over_when, monkeypatch):
    monkeypatch.setattr(runner, "GRACE_S", 0.5)
    limit_is_over_when(lambda: (tmp_path / "log.txt").read_text().rstrip().endswith("."))
    outcome = run(python(LEAVES_ITS_SESSION), tmp_path, 100)
    assert outcome.verdict == CUT_OFF and outcome.seconds < LIMIT_S
    assert has_ended(int(outcome.said.rstrip(".").split()[-1]))


def test_what_a_part_leaves_behind_is_killed_and_others_are_not(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as other:
        code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
        outcome = run(python(f"{code}; exit(1)"), tmp_path, 30)
        assert other.poll() is None
        other.kill()
    assert has_ended(int(outcome.said.split()[-1]))


def test_a_program_or_module_that_is_not_there_is_named(tmp_path):
    assert "/nowhere/tool: No such file" in run(Part("one", "", ["/nowhere/tool"], 5), tmp_path, 30).said
    for option in ({"module": "no_such_thing"}, {"program": "no_such_thing"}):
        outcome = run(python("exit(1)", **option), tmp_path, 30)
        assert (outcome.verdict, outcome.why) == (SKIPPED, "no no_such_thing")
    assert run(python("pass", module="json", program=sys.executable), tmp_path, 30).verdict == PASSED


def test_a_module_whose_import_does_not_end_costs_no_more_than_a_look(tmp_path, monkeypatch):
    (tmp_path / "endless.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(runner, "LOOK_S", 0.5)
    outcome = run(python("exit(1)", module="endless"), tmp_path, 30)
    assert (outcome.verdict, outcome.why) == (SKIPPED, "endless is not imported within 0.5 s")


def test_nothing_is_begun_when_the_time_is_over(tmp_path):
    outcome = run(python("open('here', 'w')"), tmp_path, 1)
    assert outcome.verdict == NOT_BEGUN and not (tmp_path / "log.txt").exists()


def test_every_test_is_a_finding_with_its_words(run_tests):
    outcome = run_tests(
        """
        def test_good(): pass
        def test_bad(): print("heard"); assert 1 == 2
        def test_absent(): pytest.skip("no GPU")
        @pytest.fixture
        def broken(): raise ValueError("from below")
        def test_broken(broken): pass
        @pytest.fixture
        def late(): yield; raise ValueError("at the end")
        def test_late(late): pass
        """
    )
    assert outcome.verdict == FAILED and "test_bad failed" in outcome.why
    assert verdicts(outcome) == {"good": PASSED, "bad": FAILED, "absent": SKIPPED, "broken": FAILED, "late": FAILED}
    texts = {one.name.partition("::test_")[2]: one.text for one in outcome.findings}
    assert "assert 1 == 2" in texts["bad"] and "heard" in texts["bad"] and "no GPU" in texts["absent"]
    assert "from below" in texts["broken"] and "at the end" in texts["late"]


HANGS = """
def test_first(): pass
def test_waits(): lock = threading.Lock(); lock.acquire(); lock.acquire()
def test_last(): pass
"""


@pytest.mark.long
def test_a_test_that_hangs_is_ended_and_the_others_run(run_tests):
    outcome = run_tests(HANGS, **SOON)
    assert verdicts(outcome) == {"first": PASSED, "waits": HUNG, "last": PASSED}
    [hung] = [one for one in outcome.findings if one.verdict == HUNG]
    assert "in test_waits" in hung.text and outcome.verdict == FAILED and outcome.seconds < 30


@pytest.mark.long
def test_a_process_that_does_not_start_or_end_does_not_take_the_whole_time(run_tests):
    outcome = run_tests("lock = threading.Lock(); lock.acquire(); lock.acquire()", HANG_S="1.5")
    assert (outcome.verdict, outcome.why) == (FAILED, "status 1") and "Timeout (" in outcome.said
    code = "import atexit; atexit.register(time.sleep, 600)\ndef test_first(): pass\n"
    outcome = run_tests(f"{code}def test_bad(): assert 0", **SOON)
    assert verdicts(outcome) == {"first": PASSED, "bad": FAILED} and outcome.seconds < LIMIT_S
    assert "1 failed, 1 passed" in outcome.said
    outcome = run_tests(code, **SOON)
    assert outcome.verdict == PASSED and outcome.seconds < LIMIT_S


def test_a_killed_pytest_loses_only_the_test_that_it_ran(run_tests):
    outcome = run_tests(
        """
        def test_first(): pass
        def test_killed(): os.kill(os.getpid(), signal.SIGKILL)
        def test_crashed(): os.abort()
        def test_last(): pass
        """
    )
    assert verdicts(outcome) == {"first": PASSED, "killed": DIED, "crashed": DIED, "last": PASSED}
    assert "Fatal Python error: Aborted" in next(one.text for one in outcome.findings if one.name.endswith("crashed"))


@pytest.mark.long
def test_a_part_in_which_all_is_broken_ends_early(run_tests, monkeypatch):
    outcome = run_tests("\n".join(f"def test_{n}(): assert 0" for n in range(9)))
    assert list(verdicts(outcome).values()) == [FAILED] * runner.MOST_BAD
    monkeypatch.setattr(runner, "MOST_BAD", 2)
    outcome = run_tests("\n".join(f"def test_{n}(): os.abort()" for n in range(9)))
    assert list(verdicts(outcome).values()) == [DIED] * 2


@pytest.mark.long
def test_at_the_limit_what_runs_is_cut_off_and_what_ran_is_kept(run_tests, tmp_path, limit_is_over_when, monkeypatch):
    monkeypatch.setattr(runner, "GRACE_S", 20.0)  # pytest ends well before
    limit_is_over_when(lambda: any(one.name.endswith("test_long") for one in read(tmp_path / "findings.jsonl")))
    code = "def test_first(): pass\ndef test_long(): time.sleep(60)\ndef test_last(): pass"
    outcome = run_tests(code, HANG_S="50")
    assert outcome.verdict == CUT_OFF and verdicts(outcome) == {"first": PASSED, "long": CUT_OFF}


def test_a_file_that_cannot_run_is_a_finding(run_tests):
    outcome = run_tests("pytest.skip('no GPU that torch can use', allow_module_level=True)")
    assert outcome.verdict == SKIPPED and "no GPU that torch can use" in outcome.why
    outcome = run_tests("import no_such_module")
    assert outcome.verdict == FAILED and "No module named 'no_such_module'" in outcome.findings[0].text


def test_a_part_that_runs_again_forgets_only_its_own_findings(tmp_path):
    line = '{"part": "%s", "name": "x", "verdict": "passed"}\n'
    (tmp_path / "findings.jsonl").write_text(line % "other" + line % "one" + '{"part": "one", "na')
    run(python("from devices.findings import Finding, record; record(Finding('y', 'passed'))"), tmp_path, 100)
    assert [(one.part, one.name) for one in read(tmp_path / "findings.jsonl")] == [("other", "x"), ("one", "y")]


def test_what_needs_a_failed_part_is_not_begun_and_all_are_told(tmp_path):
    def part(name: str, code: str, *needs: str) -> Part:
        return Part(name, "", [sys.executable, "-c", code], 30, needs)

    told: list[tuple[str, list[str]]] = []
    chain = [part("first", ""), part("second", "exit(1)", "first"), part("third", "", "second"), part("last", "")]
    known = [Outcome("before", PASSED), Outcome("first", FAILED)]
    outcomes = run_all(chain, tmp_path, 100, known, lambda all_, name: told.append((name, [o.part for o in all_])))
    assert {one.part: one.verdict for one in outcomes} == {
        "before": PASSED,
        "first": PASSED,
        "second": FAILED,
        "third": NOT_BEGUN,
        "last": PASSED,
    }
    assert told[0] == ("first", ["before", "first"]) and [name for name, _ in told[1:]] == ["second", "third", "last"]


def test_an_end_of_the_runner_is_told_with_what_there_is(tmp_path):
    code = (
        "import os, signal, time\n"
        "from devices.findings import BEGUN, Finding, record\n"
        "record(Finding('x', BEGUN))\n"
        f"os.kill({os.getpid()}, signal.SIGALRM)\n"
        "time.sleep(60)\n"
    )
    told: list[Outcome] = []

    def end(*_: object) -> None:
        raise SystemExit(1)

    before = signal.signal(signal.SIGALRM, end)
    try:
        with pytest.raises(SystemExit):
            run_all([python(code)], tmp_path, 100, [], lambda outcomes, _: told.extend(outcomes))
    finally:
        signal.signal(signal.SIGALRM, before)
    [one] = told
    assert (one.verdict, one.why, one.findings[0].verdict) == (CUT_OFF, "gpu-check was ended", BEGUN)
