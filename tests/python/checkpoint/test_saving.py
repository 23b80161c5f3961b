"""Saving: one folder for all ranks, each element written once, one error for all ranks, one save at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import ringdp
import torch
from ranks import HERE
from ringdp.checkpoint import CheckpointError
from ringdp.checkpoint.manifest import read_manifest
from small_run import Run
from states import Sharded, assembled, assert_same_bits, odd_state
from torch import nn

checkpoint = ringdp.checkpoint


def save_odd(folder: str, seed: int, way: str) -> tuple[str, list]:
    holder = Sharded(odd_state(seed), HERE.rank, HERE.size, seed)
    if way == "sync":
        path = checkpoint.save(folder, holder)
    else:
        pending = checkpoint.save_async(folder, holder)
        for piece in holder.held:
            piece.tensor.zero_()  # training goes on
        path = pending.wait()
    return str(path), [piece.stretch for piece in holder.held]


def contents(folder) -> dict:
    tensors = checkpoint.read(folder).tensors
    return {(kind, name): tensor for kind, named in tensors.items() for name, tensor in named.items()}


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_save_one_checkpoint(world_of, size, way, tmp_path):
    results = world_of(size).run(save_odd, str(tmp_path), 3, way)
    assert {path for path, _ in results} == {str(tmp_path / "checkpoint-000001")}
    assert_same_bits(contents(tmp_path), odd_state(3))
    manifest = read_manifest(tmp_path / "checkpoint-000001")
    assert manifest.ranks == size
    stored = [(block.spec, at) for block in manifest.hashes for at in range(block.offset, block.stop)]
    assert len(stored) == len(set(stored)) == sum(spec.elements for spec in manifest.specs)


def save_replicas(folder: str) -> None:
    model = nn.Linear(64, 64, bias=False)
    nn.init.constant_(model.weight, 0.5)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    checkpoint.save(folder, model, optimizer)


def test_replicas_are_written_in_balanced_parts(trio, tmp_path):
    trio.run(save_replicas, str(tmp_path))
    written = [(tmp_path / "checkpoint-000001" / f"__{rank}_0.distcp").stat().st_size for rank in range(3)]
    assert min(written) > 64 * 64 * 4  # one of the three tensors of this size each


def save_badly(folder: str, how: str, bad: int) -> None:
    state = odd_state(1)
    holder = Sharded(state, HERE.rank, HERE.size, 1)
    extra: object = None
    keep = 2
    if HERE.rank == bad:
        if how == "torn":
            holder.pieces = lambda: (_ for _ in ()).throw(ValueError("the state is torn"))
        elif how == "extra":
            extra = lambda: 0  # noqa: E731
        elif how == "gap":
            holder.held = [piece for piece in holder.held if piece.kind != "exp_avg"]
        elif how == "settings":
            holder.values = {"optimizer": {"lr": 2}}
        elif how == "keep":
            keep = 0
        elif how == "disk":
            checkpoint.saving.write_blocks = refuse_to_write
    try:
        checkpoint.save(folder, holder, extra=extra, keep=keep)
    finally:
        checkpoint.saving.write_blocks = checkpoint.block_writer.write_blocks


def refuse_to_write(*_: object) -> None:
    raise OSError("no space left on device")


BAD = {
    "torn": "saving a checkpoint, on rank {}: ValueError: the state is torn",
    "extra": "saving a checkpoint, on rank {}: a function cannot be stored",
    "gap": "no rank holds elements",
    "settings": "the ranks differ in settings: rank 0 has",
    "keep": "saving a checkpoint, on rank {}: keep is 0",
    "disk": "writing a checkpoint, on rank {}: OSError: no space left on device",
}


@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("how", BAD)
def test_an_error_on_one_rank_is_raised_on_all_and_leaves_nothing(trio, how, bad, tmp_path):
    trio.run(save_odd, str(tmp_path), 1, "sync")
    errors = {outcome.error for outcome in trio.attempt(save_badly, str(tmp_path), how, bad)}
    assert len(errors) == 1
    assert BAD[how].format(bad) in errors.pop()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["checkpoint-000001"]
    assert_same_bits(contents(tmp_path), odd_state(1))
    trio.run(save_odd, str(tmp_path), 2, "sync")
    assert_same_bits(contents(tmp_path), odd_state(2))


def save_twice_in_the_background(folder: str, fail_first: bool) -> list[str]:
    said = []
    holder = Sharded(odd_state(1), HERE.rank, HERE.size, 1)
    real = checkpoint.saving.write_blocks
    if fail_first and HERE.rank == 1:
        checkpoint.saving.write_blocks = refuse_to_write
    first = checkpoint.save_async(folder, holder)
    first.join()
    checkpoint.saving.write_blocks = real
    for _ in range(2):
        try:
            said.append(checkpoint.save_async(folder, holder).wait().name)
        except CheckpointError as error:
            said.append(str(error))
    return said


def test_the_save_before_is_waited_for(pair, tmp_path):
    names = ["checkpoint-000002", "checkpoint-000003"]
    assert pair.run(save_twice_in_the_background, str(tmp_path), False) == [names] * 2


def test_an_error_in_the_background_is_raised_once_by_the_next_save(pair, tmp_path):
    first, second = pair.run(save_twice_in_the_background, str(tmp_path), True)
    assert first == second
    assert "writing a checkpoint, on rank 1: OSError: no space left on device" in first[0]
    assert first[1] == "checkpoint-000001"


def test_one_process_saves_without_a_group(tmp_path):
    run = Run()
    run.steps(1)
    path = checkpoint.save(tmp_path, run.model, run.optimizer, extra=run.extra, keep=1)
    assert checkpoint.save_async(str(tmp_path), run.model, run.optimizer, keep=1).wait() != path
    assert [p.name for p in Path(tmp_path).iterdir() if p.is_dir()] == ["checkpoint-000002"]


def test_assembling_takes_every_piece():
    """The tests' own oracle: the pieces of all ranks make the whole."""
    held = [Sharded(odd_state(1), rank, 3, 5).held for rank in range(3)]
    assert_same_bits(assembled(held), odd_state(1))
