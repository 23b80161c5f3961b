"""Findings for people."""

from __future__ import annotations

from collections.abc import Sequence

from ringdp.attach.finding import Finding
from ringdp.text.terminal import print_styled

_COLOURS = {"problem": "red", "note": "yellow"}


def show_findings(findings: Sequence[Finding], not_judged: Sequence[str]) -> None:
    """Prints each finding, and what could not be judged."""
    for finding in findings:
        head, _, rest = str(finding).partition(":")
        print_styled((head, _COLOURS[finding.severity]), (f":{rest}", ""))
    for sentence in not_judged:
        print(f"not judged: {sentence}")
