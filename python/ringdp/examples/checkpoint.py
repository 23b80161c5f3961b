"""Checkpoints: one file, written under another name and renamed, so that a crash never leaves half of one.

It holds everything the next step depends on: parameters, optimizer state, the step (which fixes the sampler's
epoch and position and the learning rate), every rank's RNG state, and the settings that make it the same run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FILE = "checkpoint.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Collective. Gathers the ranks' RNG states; rank 0 writes `state` with them."""
    mine = torch.get_rng_state()
    of_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, mine)
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
        unfinished = folder / f"{FILE}.{os.getpid()}"
        torch.save({**state, "rng": of_ranks}, unfinished)
        unfinished.replace(folder / FILE)


def load(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The state given to `save`; sets this rank's RNG. Every rank reads the file itself.

    Raises FileNotFoundError without a checkpoint and ValueError, naming both values, when a setting differs.
    """
    path = folder / FILE
    if not path.exists():
        raise FileNotFoundError(
            f"--resume: there is no {path}; run without --resume first, or give its folder as --out"
        )
    state: dict[str, Any] = torch.load(path, weights_only=True)
    for name, wanted in settings.items():
        found = state["settings"].get(name)
        if found != wanted:
            raise ValueError(f"--resume: {path} was written with {name} = {found}, this run has {name} = {wanted}")
    torch.set_rng_state(state["rng"][dist.get_rank()])
    return state
