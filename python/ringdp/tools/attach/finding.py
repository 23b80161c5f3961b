"""What a check has found, as a value: what was seen, why it matters, what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ringdp.text.terminal import print_styled

Severity = Literal["problem", "note"]


@dataclass(frozen=True)
class Finding:
    """`check`: the check's name. A "note" is intended or harmless, but reported.

    `ranks`: those it is about, empty for all. `numbers`: the figures in `seen`, for programs.
    """

    check: str
    seen: str
    why: str
    fix: str
    ranks: tuple[int, ...] = ()
    severity: Severity = "problem"
    numbers: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.severity.upper()} {self.check}: {self.seen}", f"  why it matters: {self.why}"]
        return "\n".join([*lines, f"  what to do: {self.fix}"])


def problems(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that are not notes."""
    return [finding for finding in findings if finding.severity == "problem"]


_COLOURS = {"problem": "red", "note": "yellow"}


def show_findings(findings: Sequence[Finding], not_judged: Sequence[str]) -> None:
    """Prints each finding, and what could not be judged."""
    for finding in findings:
        head, _, rest = str(finding).partition(":")
        print_styled((head, _COLOURS[finding.severity]), (f":{rest}", ""))
    for sentence in not_judged:
        print(f"not judged: {sentence}")
