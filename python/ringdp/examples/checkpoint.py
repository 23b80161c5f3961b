"""Checkpoints of a run, by ringdp.checkpoint: the same whatever the wrapper and its zero_stage, resumed at any other.

Beside parameters, optimizer and generators there are the history, whose length is the step (which fixes the sampler's
epoch and position and the learning rate), and the settings that make it the same run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ringdp import checkpoint
from ringdp.checkpoint.ranks import ranks_of

FOLDER = "checkpoints"


def save(
    folder: Path, model: nn.Module, optimizer: Optimizer, history: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Collective. Writes the next checkpoint in `folder`/checkpoints; the two latest stay.

    CheckpointError on every rank when that fails on one.
    """
    ranks_of(None).on_first("making the folder of a run", lambda: _make(folder))
    checkpoint.save(folder / FOLDER, model, optimizer, extra={"history": history, "settings": settings})


def load(folder: Path, model: nn.Module, optimizer: Optimizer, settings: dict[str, Any]) -> dict[str, Any]:
    """Collective. The history of the latest checkpoint, after model, optimizer and generators have its state.

    Before anything changes: FileNotFoundError without a checkpoint; ValueError, naming both values, when a setting
    differs; CheckpointError when it is damaged.
    """
    shelf = folder / FOLDER
    if not any(shelf.glob("checkpoint-*")):
        raise FileNotFoundError(
            f"--resume: there is no checkpoint in {shelf}; run without --resume first, or give its folder as --out"
        )
    saved = checkpoint.read(shelf, tensors=False)
    for name, wanted in settings.items():
        found = saved.extras[0]["settings"].get(name)
        if found != wanted:
            raise ValueError(
                f"--resume: {saved.path} was written with {name} = {found}, this run has {name} = {wanted}"
            )
    return checkpoint.load(saved.path, model, optimizer).extra["history"]


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
