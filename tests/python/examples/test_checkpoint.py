"""Checkpoints: what is saved comes back, a crash leaves the last one, and another run's is refused."""

from __future__ import annotations

import pytest
import torch
from ringdp.examples import checkpoint

pytestmark = pytest.mark.usefixtures("alone")


def test_state_and_rng_come_back(tmp_path):
    checkpoint.save(tmp_path, {"settings": {"seed": 1}, "model": {"w": torch.ones(3)}})
    drawn = torch.rand(4)
    state = checkpoint.load(tmp_path, {"seed": 1})
    assert torch.equal(state["model"]["w"], torch.ones(3))
    assert torch.equal(torch.rand(4), drawn)


def test_a_crash_while_writing_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, {"settings": {}, "step": 1})

    def write_half(_state, path):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", write_half)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(tmp_path, {"settings": {}, "step": 2})
    assert checkpoint.load(tmp_path, {})["step"] == 1


def test_another_runs_checkpoint_is_refused_by_name_and_values(tmp_path):
    checkpoint.save(tmp_path, {"settings": {"batch": 4, "ranks": 2}})
    with pytest.raises(ValueError, match="ranks = 2, this run has ranks = 3"):
        checkpoint.load(tmp_path, {"batch": 4, "ranks": 3})


def test_without_a_checkpoint_the_message_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="run without --resume"):
        checkpoint.load(tmp_path, {})


def test_git_ignores_the_folder(tmp_path):
    checkpoint.save(tmp_path / "new", {"settings": {}})
    assert (tmp_path / "new" / ".gitignore").read_text() == "*\n"
