"""Records side by side, all checks together, and the diagnosis in print."""

from __future__ import annotations

import json
from importlib import import_module
from pkgutil import iter_modules

import pytest
from ringdp.tools.doctor import checks
from ringdp.tools.doctor.evidence import WARM_UP, Baseline, Evidence
from ringdp.tools.doctor.judge import CHECKS, NOT_JUDGED, diagnose, show, verdict
from synthetic import STEPS, evidence


def test_steps_that_all_ranks_have_made():
    short = evidence(more=lambda rank: {"step": [{"step": 0, "seconds": 1.0}]} if rank else {})
    assert list(short.by_step("step")) == [0]
    assert (short.warm("step"), short.step_seconds()) == ({}, 0.0)
    assert list(evidence().warm("step")) == list(range(WARM_UP, STEPS))


def test_waiting_is_what_nothing_hid_and_what_the_script_called():
    found = evidence(step=lambda rank, step: {"called": 0.002 * rank}).waits()
    assert found[WARM_UP] == {0: pytest.approx(0.005), 1: pytest.approx(0.007)}
    assert STEPS - 1 not in found  # the wrapper's figures come one step later
    by_hand = evidence(step=lambda rank, _: {"called": 0.002, "buffers": 0.001 * rank}, more=lambda rank: {"ddp": []})
    assert by_hand.waits()[STEPS - 1] == {0: 0.002, 1: pytest.approx(0.003)}


def test_completeness():
    assert evidence().complete
    assert not evidence(1).complete
    assert not Evidence({}).complete and Evidence({}).model() == {}
    assert not evidence(more=lambda rank: {"step": []} if rank else {}).complete


# All checks together, and the diagnosis in print.


def test_a_clean_run_has_no_findings():
    diagnosis = diagnose(evidence())
    assert diagnosis.findings == ()
    assert (diagnosis.world, diagnosis.steps, diagnosis.step_seconds) == (2, 20, 0.1)
    assert [sentence.split(":")[0] for sentence in diagnosis.not_judged] == [
        "replicas",
        "data feed",
        "learning rate",
    ]


def test_several_faults_are_all_found_and_survive_json():
    faulty = evidence(
        ddp=lambda rank, step: {"overlap": 0.0},
        place=lambda rank, _: {"threads": 8},
        baseline=Baseline(0.1, 32),
    )
    values = json.loads(json.dumps(diagnose(faulty).as_dict()))
    assert [finding["check"] for finding in values["findings"]] == ["learning rate", "overlap", "threads"]


def test_jobs_that_cannot_be_compared_are_said():
    assert any("one rank" in sentence for sentence in diagnose(evidence(1)).not_judged)
    partly = evidence(3)
    assert "rank 2 of 3 left no records" in diagnose(Evidence({r: partly.ranks[r] for r in (0, 1)})).not_judged[0]
    idle = diagnose(evidence(more=lambda rank: {"step": []} if rank else {}))
    assert "most checks: rank 1 did not step a torch.optim optimizer" in idle.not_judged[0]
    assert diagnose(Evidence({})).findings == ()


def test_every_check_is_run():
    modules = [import_module(f"{checks.__name__}.{found.name}") for found in iter_modules(checks.__path__)]
    there = {function for module in modules for name, function in vars(module).items() if name.startswith("check")}
    assert set(CHECKS) == there and len(CHECKS) == len(there) == 13
    unjudged = {function for module in modules for name, function in vars(module).items() if "not_judged" in name}
    assert set(NOT_JUDGED) == unjudged and len(NOT_JUDGED) == len(unjudged)


def test_findings_and_a_last_line(capsys):
    show(diagnose(evidence(place=lambda rank, _: {"threads": 8})))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "PROBLEM threads: 2 ranks on here have 16 threads for 8 cores"
    assert lines[1].startswith("  why it matters: ") and lines[2].startswith("  what to do: OMP_NUM_THREADS=4")
    assert lines[-1] == "1 problem: 2 ranks, 20 steps of 100.0 ms"


def test_no_problem():
    assert verdict(diagnose(evidence())) == "no problems: 2 ranks, 20 steps of 100.0 ms"
