"""ringdp/doctor/show.py: the diagnosis in print."""

from __future__ import annotations

from ringdp.doctor.judge import diagnose
from ringdp.doctor.show import show, verdict
from synthetic import evidence


def test_findings_and_a_last_line(capsys):
    show(diagnose(evidence(place=lambda rank, _: {"threads": 8})))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "PROBLEM threads: 2 ranks on here have 16 threads between them for 8 cores"
    assert lines[1].startswith("  why it matters: ") and lines[2].startswith("  what to do: OMP_NUM_THREADS=4")
    assert lines[-1] == "1 problem: 2 ranks, 20 steps of 100.0 ms"


def test_no_problem():
    assert verdict(diagnose(evidence())) == "no problems: 2 ranks, 20 steps of 100.0 ms"
