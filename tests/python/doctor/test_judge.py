"""ringdp/doctor/judge.py: all checks together."""

from __future__ import annotations

import json

from ringdp.doctor.evidence import Baseline, Evidence
from ringdp.doctor.judge import CHECKS, diagnose
from synthetic import evidence


def test_a_clean_run_has_no_findings():
    diagnosis = diagnose(evidence())
    assert diagnosis.findings == ()
    assert (diagnosis.world, diagnosis.steps, diagnosis.step_seconds) == (2, 20, 0.1)
    assert [sentence.split(":")[0] for sentence in diagnosis.not_judged] == ["data feed", "learning rate"]


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
    assert "most: rank 1 made no step of a torch.optim optimizer" in idle.not_judged[0]
    assert diagnose(Evidence({})).findings == ()


def test_every_check_is_run():
    assert len({module.__name__ for module in CHECKS}) == len(CHECKS) == 11
