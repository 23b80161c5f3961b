"""The last lines of a failed job's output: first what its ranks have said, then torchrun's account of them."""

from __future__ import annotations

import re

_RANKS, _LAUNCHER = 60, 30  # lines
_LOGGED = re.compile(r"[IWEC]\d{4} \S+ +\d+ \S*torch/distributed/(elastic|run|launcher)\b")
_TRACEBACK = "Traceback (most recent call last):"


def last_lines(text: str) -> list[str]:
    """torchrun's traceback comes after the ranks' own and is as long as a screen: alone it would hide theirs."""
    lines = text.splitlines()
    begin = _launcher_begins(lines)
    ranks = [line for line in lines[:begin] if not _LOGGED.match(line)]
    launcher = [line for line in lines[:begin] if _LOGGED.match(line)] + lines[begin:]
    return [*ranks[-_RANKS:], *launcher[-_LAUNCHER:]]


def _launcher_begins(lines: list[str]) -> int:
    """The line at which its traceback begins; their number where there is none."""
    begins = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    if begins and any("torch/distributed/launcher/api.py" in line for line in lines[begins[-1] :]):
        return begins[-1]
    return len(lines)
