"""Faults that are planted in scripts that are not ours: the right rank, the right cause. Healthy ones: no finding."""

from __future__ import annotations

import ast
import sys

import pytest
import warm_torchrun
from foreign import FAULTS, HEALTHY, script
from ringdp.tools.attach.assignment import Assignment
from ringdp.tools.doctor.judge import diagnose
from ringdp.tools.doctor.run import examine

STEPS = 20
SLICE = {("changed in step 7", "gloo"), ("gpt", "ringdp")}


def cells(rows):
    """Each with its name and backend; those of SLICE are in `make test`."""
    marks = {cell: [] if cell in SLICE else [pytest.mark.long] for cell in rows}
    return [pytest.param(*cell, marks=marks[cell], id=f"{cell[0]}-{cell[1]}") for cell in rows]


@pytest.fixture
def examined(tmp_path, monkeypatch):
    """examined(script, change, backend, *options): the findings about a job of two ranks."""

    def run(name, change, backend, *options):
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        records = tmp_path / "records"
        records.mkdir()
        job = [sys.executable, warm_torchrun.__file__, "2", str(script(tmp_path, name, change)), backend]
        patience = float(options[1]) if options else 60.0
        return diagnose(examine(job, Assignment("doctor", records), STEPS, patience, None)).findings

    return run


@pytest.mark.parametrize(("name", "backend"), cells([(name, b) for name, f in FAULTS.items() for b in f.backends]))
def test_a_fault_is_named_with_its_rank_and_its_cause(examined, name, backend):
    fault = FAULTS[name]
    found = examined(fault.script, fault.change, backend, *fault.options)
    findings = [f for f in found if f.check == fault.check]
    assert len(findings) == 1, found
    assert fault.said in findings[0].seen + findings[0].fix
    assert fault.ranks in (None, findings[0].ranks)


@pytest.mark.parametrize(("name", "backend"), cells([(name, b) for name in HEALTHY for b in ("ringdp", "gloo")]))
def test_a_healthy_job_has_no_finding(examined, name, backend):
    assert examined(*HEALTHY[name], backend) == ()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fits_its_script(name, tmp_path):
    fault = FAULTS[name]
    text = script(tmp_path, fault.script, fault.change).read_text()
    assert text != script(tmp_path, fault.script, ()).read_text()
    ast.parse(text)
