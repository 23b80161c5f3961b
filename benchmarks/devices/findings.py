"""What a check of a GPU has found, one line of JSON each, written at once: a program that is killed loses none.

    {"part": "plans", "name": "test_plans.py::test_in_place[SPIN]", "verdict": "passed", "seconds": 0.2, ...}

A line is written when something begins, too, and the last one of a name counts: one that only began has not ended. The
file is $FINDINGS, the part $FINDINGS_PART; without a file lines go to stdout. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BEGUN, PASSED, SKIPPED = "begun", "passed", "skipped"
FAILED, HUNG, DIED, CUT_OFF = "failed", "hung", "died", "cut off"
BAD = (FAILED, HUNG, DIED)


@dataclass
class Finding:
    """One test or probe. `text`: why it has not passed; `facts`: what was measured, by name."""

    name: str
    verdict: str
    seconds: float = 0.0
    text: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    part: str = field(default_factory=lambda: os.environ.get("FINDINGS_PART", ""))


class NotHere(Exception):
    """What is to be probed does not exist on this machine: the sentence says what is missing."""


def record(finding: Finding, path: str | Path | None = None) -> None:
    """Appends a line; `path`: instead of $FINDINGS."""
    line = json.dumps(asdict(finding)) + "\n"
    if path := path or os.environ.get("FINDINGS"):
        with open(path, "a") as stream:
            stream.write(line)
    else:
        sys.stdout.write(line)
        sys.stdout.flush()


def read(path: Path) -> list[Finding]:
    """The last line of every name, in the order in which they began; a line that is not whole is left out."""
    found: dict[tuple[str, str], Finding] = {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            finding = Finding(**json.loads(line))
        except (ValueError, TypeError):
            continue  # its writer was killed
        found[finding.part, finding.name] = finding
    return list(found.values())


@contextmanager
def finding(name: str) -> Iterator[dict[str, Any]]:
    """Records how the block ends: NotHere is a skip, an exception a failure. Facts go into what it is given."""
    record(Finding(name, BEGUN))
    begin, facts = time.monotonic(), {}
    verdict, text = PASSED, ""
    try:
        yield facts
    except NotHere as why:
        verdict, text = SKIPPED, str(why)
    except Exception as error:
        verdict, text = FAILED, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    record(Finding(name, verdict, time.monotonic() - begin, text, facts))


def record_all(calls: dict[str, Callable[[], dict[str, Any]]]) -> None:
    """One finding for each: what it returns are its facts."""
    for name, call in calls.items():
        with finding(name) as facts:
            facts.update(call())
