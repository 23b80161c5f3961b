"""All checks over the evidence of one short run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ringdp.text.units import counted, names
from ringdp.tools.attach.finding import Finding, problems, show_findings
from ringdp.tools.attach.records import absent
from ringdp.tools.doctor.checks import (
    failure,
    feed,
    learning_rate,
    mismatch,
    performance,
    placement,
    replicas,
    reproducibility,
)
from ringdp.tools.doctor.evidence import Evidence

CHECKS: tuple[Callable[[Evidence], Iterable[Finding]], ...] = (  # the most serious first
    failure.check,
    mismatch.check_calls,
    mismatch.check_layers,
    replicas.check_replicas,
    feed.check,
    replicas.check_same_work,
    reproducibility.check_dropout,
    reproducibility.check_kernels,
    learning_rate.check,
    performance.check_overlap,
    performance.check_stragglers,
    placement.check_pinning,
    placement.check_topology,
)
NOT_JUDGED: tuple[Callable[[Evidence], Iterable[str]], ...] = (
    replicas.not_judged,
    feed.not_judged,
    reproducibility.kernels_not_judged,
    learning_rate.not_judged,
    performance.overlap_not_judged,
    performance.stragglers_not_judged,
    placement.topology_not_judged,
)


@dataclass(frozen=True)
class Diagnosis:
    """`steps`: the fewest that a rank made. `not_judged`: what could not be checked, and what would help."""

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
    findings = [finding for check in CHECKS for finding in check(evidence)]
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
        said.append("most checks: the job has one rank, and they compare several")
    elif idle := [rank for rank, records in evidence.ranks.items() if not records.of("step")]:
        said.append(f"most checks: {names(idle)} did not step a torch.optim optimizer after a backward pass")
    return [*said, *(sentence for not_judged in NOT_JUDGED for sentence in not_judged(evidence))]


def show(diagnosis: Diagnosis) -> None:
    """Prints the findings, what could not be judged, and the verdict as the last line."""
    show_findings(diagnosis.findings, diagnosis.not_judged)
    print(verdict(diagnosis))


def verdict(diagnosis: Diagnosis) -> str:
    """A summary in one line: the number of problems, ranks and steps, and the time per step."""
    found = len(problems(diagnosis.findings))
    seconds = f" of {1e3 * diagnosis.step_seconds:.1f} ms" if diagnosis.step_seconds else ""
    ran = f"{counted(diagnosis.world, 'rank')}, {counted(diagnosis.steps, 'step')}{seconds}"
    return f"{counted(found, 'problem') if found else 'no problems'}: {ran}"
