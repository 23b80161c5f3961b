"""What the processes of a watched job are told through the environment: which tool watches, and where records go."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        """What the job's processes find."""
        return {VARIABLE: str(self)}

    def write_options(self, options: Mapping[str, Any]) -> None:
        """Before the job starts: what its ranks are to do."""
        (self.folder / _OPTIONS).write_text(json.dumps(options))

    def note_attached(self) -> None:
        """In a process of the job that sets the tool's hooks. OSError when the folder is gone."""
        (self.folder / _ATTACHED).touch()

    @property
    def attached(self) -> bool:
        """Whether any process of the job has the tool's hooks."""
        return (self.folder / _ATTACHED).exists()

    def options(self) -> dict[str, Any]:
        """What write_options() was given."""
        return json.loads((self.folder / _OPTIONS).read_text())


def parse(text: str) -> Assignment:
    """`tool:folder`. ValueError names what is accepted."""
    tool, _, folder = text.partition(":")
    if tool not in TOOLS or not Path(folder).is_dir() or not folder:
        accepted = " or ".join(f"{name}:FOLDER" for name in TOOLS)
        raise ValueError(f"'{text}' is no value for {VARIABLE}: accepted is {accepted}, with a folder that exists")
    return Assignment(tool, Path(folder))


def from_environment() -> Assignment | None:
    """This process's; None where nobody watches."""
    text = os.environ.get(VARIABLE)
    return parse(text) if text else None
