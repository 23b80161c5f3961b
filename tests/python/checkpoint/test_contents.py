"""A checkpoint read whole, by one process, for a plain module."""

from __future__ import annotations

from decimal import Decimal

import pytest
import ringdp
import torch
from ranks import HERE
from ringdp.checkpoint import CheckpointError
from small_run import Run
from states import Sharded, odd_state

checkpoint = ringdp.checkpoint


def save_odd(folder: str) -> None:
    checkpoint.save(folder, Sharded(odd_state(6), HERE.rank, HERE.size, 2), extra=HERE.rank)


def test_what_ranks_have_saved_is_read_by_one_process(trio, tmp_path):
    trio.run(save_odd, str(tmp_path))
    found = checkpoint.read(tmp_path)
    assert found.extras == [0, 1, 2]
    assert found.settings["optimizer"]["algorithm"] == "Odd"
    assert found.tensors["step"]["embed.weight"].shape == ()


def test_settings_and_extras_can_be_read_alone(tmp_path):
    path = checkpoint.save(tmp_path, Sharded(odd_state(1), 0, 1, 0), extra={"step": 3})
    file = path / "__0_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))  # nobody looks at it
    found = checkpoint.read(tmp_path, tensors=False)
    assert (found.tensors, found.extras, found.settings["optimizer"]["algorithm"]) == ({}, [{"step": 3}], "Odd")


def test_parameters_and_buffers_suit_a_plain_module(tmp_path):
    run, other = Run(), Run()
    run.steps(2)
    checkpoint.save(tmp_path, run.model, run.optimizer)
    tensors = checkpoint.read(tmp_path).tensors
    other.model.load_state_dict({**tensors["parameter"], **tensors["buffer"]})
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[name], tensor)


def test_a_pickle_needs_permission_and_its_file_is_named(tmp_path):
    path = checkpoint.save(tmp_path, Run().model, extra=Decimal(3))
    with pytest.raises(CheckpointError, match="allow_pickle=True") as caught:
        checkpoint.read(tmp_path)
    assert str(path) in str(caught.value)
    assert checkpoint.read(tmp_path, allow_pickle=True).extras == [Decimal(3)]
    with pytest.raises(CheckpointError, match="allow_pickle=True"):
        checkpoint.load(tmp_path, Run().model)
