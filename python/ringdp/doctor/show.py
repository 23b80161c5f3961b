"""A diagnosis for people."""

from __future__ import annotations

from ringdp.attach.finding import problems
from ringdp.attach.show import show_findings
from ringdp.doctor.judge import Diagnosis
from ringdp.text.units import counted


def show(diagnosis: Diagnosis) -> None:
    """Prints the findings, what could not be judged, and the verdict as the last line."""
    show_findings(diagnosis.findings, diagnosis.not_judged)
    print(verdict(diagnosis))


def verdict(diagnosis: Diagnosis) -> str:
    """One line."""
    found = len(problems(diagnosis.findings))
    seconds = f" of {1e3 * diagnosis.step_seconds:.1f} ms" if diagnosis.step_seconds else ""
    ran = f"{counted(diagnosis.world, 'rank')}, {counted(diagnosis.steps, 'step')}{seconds}"
    return f"{found or 'no'} problem{'s' if found != 1 else ''}: {ran}"
