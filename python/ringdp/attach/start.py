"""In every process of a watched job, at the end of `import torch`: the tool that was asked for sets its hooks."""

from __future__ import annotations

import importlib

from ringdp.attach.assignment import from_environment
from ringdp.attach.rank_file import RankFile

# Each has attach(write, options).
_MODULES = {"audit": "ringdp.feed.attach", "doctor": "ringdp.doctor.attach"}
_started = False


def start() -> None:
    """Once per process. ValueError on a bad assignment, OSError when its options cannot be read."""
    global _started
    assignment = from_environment()
    if assignment is None or _started:
        return
    _started = True
    tool = importlib.import_module(_MODULES[assignment.tool])
    assignment.note_attached()
    tool.attach(RankFile(assignment.folder), assignment.options())
