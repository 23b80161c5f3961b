"""A checkpoint read whole, by one process, for a plain module."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
import ringdp
import torch
from ranks import HERE
from ringdp.checkpoint import CheckpointError, manifest
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


DAMAGE = {
    "a tag that is no name": lambda content: content.update(extras=[{"~": [1], "is": 1}]),
    "a set of lists": lambda content: content.update(extras=[{"~": "set", "is": [[1]]}]),
    "half a complex": lambda content: content.update(extras=[{"~": "complex", "is": 3}]),
    "a tensor of noise": lambda content: content.update(extras=[{"~": "tensor", "is": "bm9pc2U="}]),
    "no text": lambda content: content.update(extras=[{"~": "bytes", "is": 5}]),
    "a huge tensor": lambda content: content["tensors"][0].update(shape=[1 << 60], pieces=[[0, 1 << 60, "00"]]),
    "a tensor of words": lambda content: content["tensors"][0].update(shape=["many"]),
    "a length of words": lambda content: content["tensors"][0].update(pieces=[[0, "long", "00"]]),
    "hashes of numbers": lambda content: content["tensors"][0]["pieces"][0].__setitem__(2, 5),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("how", ["read", "load"])
def test_a_forged_manifest_is_one_error_that_names_its_folder(tmp_path, damage, how):
    """Its own sha256 is right: whoever writes one can do so."""
    model = torch.nn.Linear(2, 3)
    path = checkpoint.save(tmp_path, model)
    whole = json.loads((path / manifest.FILE).read_text())
    damage(whole["content"])
    for entry in whole["content"]["tensors"]:
        entry["sha256"] = manifest._sha256("".join(str(piece[2]) for piece in entry["pieces"]))
    whole["sha256"] = manifest._sha256(manifest._canonical(whole["content"]))
    (path / manifest.FILE).write_text(json.dumps(whole))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(tmp_path) if how == "read" else checkpoint.load(tmp_path, model)
    assert str(path) in str(caught.value)


def test_json_too_deep_to_read_is_an_error_that_names_it(tmp_path):
    path = checkpoint.save(tmp_path, torch.nn.Linear(2, 3))
    (path / manifest.FILE).write_text("[" * 100000)
    with pytest.raises(CheckpointError, match=path.name):
        checkpoint.read(tmp_path)


def test_a_pickle_needs_permission_and_its_file_is_named(tmp_path):
    path = checkpoint.save(tmp_path, Run().model, extra=Decimal(3))
    with pytest.raises(CheckpointError, match="allow_pickle=True") as caught:
        checkpoint.read(tmp_path)
    assert str(path) in str(caught.value)
    assert checkpoint.read(tmp_path, allow_pickle=True).extras == [Decimal(3)]
    with pytest.raises(CheckpointError, match="allow_pickle=True"):
        checkpoint.load(tmp_path, Run().model)
