"""All checks over the evidence of one short run."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ringdp.attach.finding import Finding, names
from ringdp.attach.records import absent
from ringdp.doctor.checks import (
    dropout,
    failure,
    feed,
    groups,
    kernels,
    layers,
    learning_rate,
    overlap,
    pinning,
    straggler,
    topology,
)
from ringdp.doctor.evidence import Evidence

CHECKS: tuple[ModuleType, ...] = (
    failure,
    groups,
    layers,
    feed,
    dropout,
    kernels,
    learning_rate,
    overlap,
    straggler,
    pinning,
    topology,
)


@dataclass(frozen=True)
class Diagnosis:
    """`steps`: of the rank that made fewest. `not_judged`: sentences about what could not be, and what to give."""

    world: int
    steps: int
    step_seconds: float
    findings: tuple[Finding, ...]
    not_judged: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        findings = [finding.as_dict() for finding in self.findings]
        return {**vars(self), "findings": findings, "not_judged": list(self.not_judged)}


def diagnose(evidence: Evidence) -> Diagnosis:
    """What is wrong, the most serious first."""
    findings = [finding for module in CHECKS for finding in module.check(evidence)]
    return Diagnosis(
        world=evidence.world,
        steps=evidence.steps,
        step_seconds=evidence.step_seconds(),
        findings=tuple(findings),
        not_judged=tuple(_not_judged(evidence)),
    )


def _not_judged(evidence: Evidence) -> list[str]:
    said = []
    if missing := absent(evidence.ranks):
        said.append(f"{names(missing)} of {evidence.world} left no records: on another host, or without ringdp")
    if evidence.world == 1:
        said.append("most: the job has one rank, and the checks compare several")
    elif idle := [rank for rank, records in evidence.ranks.items() if not records.of("step")]:
        said.append(f"most: {names(idle)} made no step of a torch.optim optimizer after a backward pass")
    for module in CHECKS:
        said += getattr(module, "not_judged", lambda evidence: ())(evidence)
    return said
