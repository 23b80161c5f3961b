"""Tells the processes of a watched job, through the environment, which tool watches and where records go."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringdp.tools.attach.records import RankFile

VARIABLE = "RINGDP_ATTACH"
TOOLS = ("audit", "doctor")
_OPTIONS = "options.json"
_ATTACHED = "attached"


@dataclass(frozen=True)
class Assignment:
    """`tool` is one of TOOLS; `folder` exists and is reached by all ranks of the job."""

    tool: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.tool}:{self.folder}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for the job's processes."""
        return {VARIABLE: str(self)}

    def write_options(self, options: Mapping[str, Any]) -> None:
        """Writes the options for the ranks; call it before the job starts."""
        (self.folder / _OPTIONS).write_text(json.dumps(options))

    def note_attached(self) -> None:
        """Called in a process of the job that sets the tool's hooks. OSError when the folder is gone."""
        (self.folder / _ATTACHED).touch()

    @property
    def attached(self) -> bool:
        """Whether any process of the job has the tool's hooks."""
        return (self.folder / _ATTACHED).exists()

    def options(self) -> dict[str, Any]:
        """What write_options() was given."""
        return json.loads((self.folder / _OPTIONS).read_text())


def parse(text: str) -> Assignment:
    """`tool:folder`. ValueError says what is expected."""
    tool, _, folder = text.partition(":")
    if tool not in TOOLS or not Path(folder).is_dir() or not folder:
        expected = " or ".join(f"{name}:FOLDER" for name in TOOLS)
        raise ValueError(f"invalid value '{text}' for {VARIABLE} (expected {expected}, with a folder that exists)")
    return Assignment(tool, Path(folder))


def from_environment() -> Assignment | None:
    """The assignment of this process; None where no tool watches it."""
    text = os.environ.get(VARIABLE)
    return parse(text) if text else None


# Each has attach(write, options).
_MODULES = {"audit": "ringdp.tools.feed.hooks", "doctor": "ringdp.tools.doctor.probes"}
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
