"""Checkpoints of a run: what is saved comes back, and another run's is refused before anything has changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ringdp.checkpoint import CheckpointError
from ringdp.examples import checkpoint
from torch import nn

pytestmark = pytest.mark.usefixtures("alone")


def made(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, value)
    return model, torch.optim.SGD(model.parameters(), lr=value)


def saved(folder: Any, **settings: Any) -> None:
    checkpoint.save(folder, *made(1.0), {"losses": [0.5], "validation": [(0, 2.0)], "seconds": 1.0}, settings)


def test_state_history_and_rng_come_back(tmp_path):
    saved(tmp_path, seed=1)
    drawn = torch.rand(4)
    model, optimizer = made(3.0)
    history = checkpoint.load(tmp_path, model, optimizer, {"seed": 1})
    assert history == {"losses": [0.5], "validation": [(0, 2.0)], "seconds": 1.0}
    assert bool((model.weight == 1.0).all()) and optimizer.param_groups[0]["lr"] == 1.0
    torch.rand(4)  # what `made` draws is not what was drawn
    checkpoint.load(tmp_path, model, optimizer, {"seed": 1})
    assert torch.equal(torch.rand(4), drawn)


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"batch": 4, "ranks": 3}, "ranks = 2, this run has ranks = 3"), ({"width": 8}, "width = None, this run has")],
)
def test_another_runs_checkpoint_is_refused_by_name_and_values(tmp_path, settings, says):
    saved(tmp_path, batch=4, ranks=2)
    model, optimizer = made(3.0)
    with pytest.raises(ValueError, match=says):
        checkpoint.load(tmp_path, model, optimizer, settings)
    assert bool((model.weight == 3.0).all())


def test_a_damaged_one_is_named(tmp_path):
    saved(tmp_path)
    next((tmp_path / "checkpoints").glob("*/*.distcp")).write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"__0_0.distcp is truncated"):
        checkpoint.load(tmp_path, *made(3.0), {})


def test_without_a_checkpoint_the_message_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="run without --resume"):
        checkpoint.load(tmp_path, *made(1.0), {})


def test_git_ignores_the_folder(tmp_path):
    saved(tmp_path / "new")
    assert (tmp_path / "new" / ".gitignore").read_text() == "*\n"


def test_a_folder_that_cannot_be_made_is_every_ranks_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="making the folder of a run"):
        saved(tmp_path / "file" / "run")
