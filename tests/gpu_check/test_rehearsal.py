"""gpu-check on emulated devices: a fault in every part, and no verdict is lost; tests of a GPU before there is one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from devices.findings import CUT_OFF, DIED, FAILED, HUNG, PASSED, SKIPPED
from stand_in import GPU_LIBRARY

from gpu_check import report
from gpu_check.parts import RANKS_SHARE, ROOT, environment, pytest_command
from gpu_check.runner import Part, run, run_all

FILE = "tests/gpu_check/on_stand_in.py"
HANG_S, PART_S, ALL_S = 30.0, 400.0, 3000.0  # longer than on a machine of its own
# What is planted: the verdict of the test, and words of its text.
PLANTED = {
    "nothing": (PASSED, ""),
    "a wrong sum": (FAILED, "assert [2.5, 2.5] == [2.0, 2.0]"),
    "a rank hangs": (FAILED, f"rank 0 is not done after {RANKS_SHARE * HANG_S} s"),
    "a rank crashes": (FAILED, "rank 1 died with status -11"),
    "pytest hangs": (HUNG, "in test_planted"),
    "pytest is killed": (DIED, ""),
    "no NCCL": (SKIPPED, "no NCCL"),
}


@pytest.mark.long
def test_every_verdict_is_in_the_report_whatever_else_fails(tmp_path, stand_in):
    """Three hangs are among the faults: of a rank, of pytest, and of a part that ignores its limit."""
    common = environment(HANG_S)
    driver = {"LIBCUDA": str(Path(stand_in).with_name(GPU_LIBRARY)), "STAND_IN_DEVICES": "1", "STAND_IN_LACKS": "ipc"}
    stuck = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    plan = [
        Part("probe", "", [sys.executable, "-m", "devices.probe"], PART_S, variables={**common, **driver}),
        *(
            Part(
                planted,
                "",
                pytest_command(sys.executable, FILE),
                PART_S,
                variables={**common, "PLANTED": planted},
                again=True,
            )
            for planted in PLANTED
        ),
        Part("stuck", "", [sys.executable, "-c", stuck], 6),
        Part("last", "", [sys.executable, "-c", "print('here')"], 6),
    ]
    told = []
    before = os.getcwd()
    os.chdir(ROOT)
    try:
        run_all(plan, tmp_path, ALL_S, [], lambda outcomes, name: told.append(report.write(outcomes, tmp_path) or name))
    finally:
        os.chdir(before)
    assert told == [part.name for part in plan]
    outcomes = {one.part: one for one in report.outcomes_in(tmp_path / report.JSON)}
    for planted, (verdict, words) in PLANTED.items():
        found = {one.name.partition("::")[2]: one for one in outcomes[planted].findings}
        assert {name: one.verdict for name, one in found.items()} == {
            "test_before": PASSED,
            "test_planted": verdict,
            "test_after": PASSED,
        }, (planted, outcomes[planted])
        assert words in found["test_planted"].text
        assert outcomes[planted].verdict == (PASSED if verdict in (PASSED, SKIPPED) else FAILED)
    [wrong] = [one.text for one in outcomes["a wrong sum"].findings if one.verdict == FAILED]
    assert "stderr of rank 1 of 2 call:\nthis rank brings 1.5" in wrong
    assert "in summed" in next(one.text for one in outcomes["a rank hangs"].findings if one.verdict == FAILED)
    probes = {one.name: one.verdict for one in outcomes["probe"].findings}
    assert probes.pop("share legacy IPC") == probes.pop("killed exporter, legacy IPC") == SKIPPED
    assert set(probes.values()) == {PASSED} and outcomes["probe"].verdict == PASSED
    assert outcomes["stuck"].verdict == CUT_OFF and outcomes["last"].verdict == PASSED
    text = (tmp_path / report.MARKDOWN).read_text()
    assert "### a rank crashes: on_stand_in.py::test_planted: failed" in text and "refused: the other process" in text


# What the stand-in has enough streams, cores and operators of torch for.
@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "chosen", "least"),
    [
        ("test_plans", "not 8", 40),
        ("test_plan_processes", "not 8", 4),
        ("test_plan_faults", "", 7),
        ("test_collectives", "not 8- and not complex", 30),
        ("test_pieces", "2- and not complex", 8),
        ("test_several_gpus", "", 5),
    ],
)
def test_tests_of_a_gpu_pass_on_the_stand_in(tmp_path, stand_in, file, chosen, least):
    place = {"GPU_STAND_IN": stand_in, "STAND_IN_MULTIPROCESSORS": "8"}
    command = pytest_command(sys.executable, str(ROOT / f"tests/device/gpu/{file}.py"), "-k", chosen)
    outcome = run(Part(file, "", command, 500, variables={**environment(100), **place}, again=True), tmp_path, 500)
    assert outcome.verdict == PASSED and outcome.counts()[PASSED] >= least, (outcome, outcome.said)
