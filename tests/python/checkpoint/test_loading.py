"""Loading into models and optimizers, and reading a whole checkpoint in one process."""

from __future__ import annotations

import json
import random
import shutil
from decimal import Decimal
from pathlib import Path

import numpy
import pytest
import ringdp
import torch
from ranks import HERE, error_of, values_of
from ringdp.checkpoint import CheckpointError, manifest
from ringdp.checkpoint.loading import Loaded
from ringdp.checkpoint.manifest import FILE
from small_run import Run
from states import Sharded, assembled, assert_same_bits, odd_state

checkpoint = ringdp.checkpoint


def save_odd(folder: str, seed: int) -> None:
    checkpoint.save(folder, Sharded(odd_state(seed), HERE.rank, HERE.size, seed), extra={"rank": HERE.rank})


def load_odd(folder: str, seed: int, stale: int) -> tuple[list, dict]:
    holder = Sharded(odd_state(stale), HERE.rank, HERE.size, seed)
    checkpoint.load(folder, holder)
    return holder.held, dict(holder.values)


@pytest.mark.parametrize("saved_by", [1, 2, 3, 4])
def test_resharding_changes_no_bit(world_of, saved_by, tmp_path):
    world_of(saved_by).run(save_odd, str(tmp_path), saved_by)
    for loaded_by in (1, 2, 3, 4):
        results = world_of(loaded_by).run(load_odd, str(tmp_path), 10 + loaded_by, 77)
        assert_same_bits(assembled([held for held, _ in results]), odd_state(saved_by))
        assert all(values["optimizer"]["algorithm"] == "Odd" for _, values in results)


def seed_rank() -> None:
    random.seed(HERE.rank + 1)
    numpy.random.seed(HERE.rank + 1)
    torch.manual_seed(HERE.rank + 1)


def train_through(folder: str) -> dict:
    run = Run()
    seed_rank()
    run.steps(3)
    checkpoint.save(folder, run.model, run.optimizer, extra=run.extra)
    run.steps(3)
    return run.everything()


def train_resumed(folder: str) -> dict:
    run = Run()
    run.steps(1)
    run.extra = checkpoint.load(folder, run.model, run.optimizer).extra
    run.steps(3)
    return run.everything()


@pytest.mark.parametrize("size", [1, 2])
def test_a_resumed_run_equals_the_uninterrupted_one(world_of, size, tmp_path):
    world = world_of(size)
    expected = world.run(train_through, str(tmp_path))
    for rank, (found, wanted) in enumerate(zip(world.run(train_resumed, str(tmp_path)), expected, strict=True)):
        # Every rank has batch statistics of its own, of which rank 0's are saved; no step depends on them.
        odd = [name for name in wanted if rank > 0 and "running" in name]
        assert_same_bits(without(found, odd), without(wanted, odd))


def without(state: dict, names: list[str]) -> dict:
    return {name: tensor for name, tensor in state.items() if name not in names}


def test_through_shards_into_a_stock_optimizer_and_back(trio, tmp_path):
    run, other = Run(), Run()
    run.steps(2)
    checkpoint.save(tmp_path, run.model, run.optimizer)
    trio.run(save_what_was_loaded, str(tmp_path))
    checkpoint.load(tmp_path, other.model, other.optimizer, rng=False)
    other.extra = run.extra
    seed_rank()
    run.steps(2)
    seed_rank()
    other.steps(2)
    assert_same_bits(other.everything(), run.everything())


def save_what_was_loaded(folder: str) -> str:
    holder = Sharded({}, HERE.rank, HERE.size, 9)
    checkpoint.load(folder, holder)
    return str(checkpoint.save(folder, holder))


def draws_after_loading(folder: str) -> list[float]:
    checkpoint.load(folder, Sharded({}, HERE.rank, HERE.size, 0))
    return [random.random(), float(numpy.random.random()), torch.rand(()).item()]


def test_another_number_of_ranks_starts_generators_afresh_and_alike_every_time(pair, trio, tmp_path):
    pair.run(save_odd, str(tmp_path), 1)
    first, second = (trio.run(draws_after_loading, str(tmp_path)) for _ in range(2))
    assert first == second
    assert len({tuple(draws) for draws in first}) == 3


def extra_of(folder: str) -> tuple[object, list]:
    loaded = checkpoint.load(folder, Sharded({}, HERE.rank, HERE.size, 0))
    try:
        return loaded.extra, loaded.extras
    except CheckpointError as error:
        return str(error), loaded.extras


def test_every_rank_gets_its_own_extra_back(pair, trio, tmp_path):
    pair.run(save_odd, str(tmp_path), 1)
    both = [{"rank": 0}, {"rank": 1}]
    assert pair.run(extra_of, str(tmp_path)) == [(both[0], both), (both[1], both)]
    for said, extras in trio.run(extra_of, str(tmp_path)):
        assert "saved by 2 ranks with different `extra`, and 3 load it" in said
        assert extras == both


def test_an_extra_that_was_alike_is_anybodys():
    assert Loaded(Path("x"), [5, 5], rank=2, size=3, alike=True).extra == 5


def test_weights_alone_need_no_optimizer(tmp_path):
    run, other = Run(), Run()
    run.steps(2)
    checkpoint.save(tmp_path, run.model, run.optimizer)
    checkpoint.load(tmp_path, other.model)
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[name], tensor)
    assert not other.optimizer.state


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip_in(path: Path, value: bytes) -> None:
    content = path.read_bytes()
    at = content.index(value)
    path.write_bytes(content[:at] + bytes([value[0] ^ 1]) + content[at + 1 :])


def make_newer(path: Path) -> None:
    path.write_text(path.read_text().replace('"version": 1', '"version": 9', 1))


BREAKS = {
    "truncated": lambda path, _: truncate(path / "__1_0.distcp"),
    "missing": lambda path, _: (path / "__1_0.distcp").unlink(),
    "corrupted": lambda path, value: flip_in(path / "__1_0.distcp", value),
    "no index": lambda path, _: (path / ".metadata").unlink(),
    "no manifest": lambda path, _: (path / FILE).unlink(),
    "foreign": lambda path, _: (path / FILE).write_text("{}"),
    "newer": lambda path, _: make_newer(path / FILE),
}
NAMED = {"no index": ".metadata", "no manifest": FILE, "foreign": FILE, "newer": FILE}


def load_in_vain(folder: str, bad_model_on: int) -> tuple[str, bool]:
    """The error, and whether everything is as it was."""
    run = Run()
    run.steps(2)
    if bad_model_on == HERE.rank:
        run.model[0].weight.data = torch.zeros(8, 7)
    before, generators = run.everything(), [random.getstate(), torch.get_rng_state().tolist()]
    said = error_of(checkpoint.load, folder, run.model, run.optimizer, kind=CheckpointError)
    after = run.everything()
    same = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    return said, same and generators == [random.getstate(), torch.get_rng_state().tolist()]


def save_run(folder: str) -> bytes:
    """The first bytes of a tensor that rank 1 has written."""
    run = Run()
    seed_rank()
    run.steps(1)
    path = checkpoint.save(folder, run.model, run.optimizer)
    file = (path / "__1_0.distcp").read_bytes()
    for tensor in run.everything().values():
        value = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())
        if len(value) > 16 and file.count(value[:16]) == 1:
            return value[:16]
    raise AssertionError(f"none of {list(run.everything())} was written by rank 1")


@pytest.mark.parametrize("how", BREAKS)
def test_a_damaged_checkpoint_is_refused_on_all_ranks_and_nothing_changes(pair, how, tmp_path):
    value = pair.run(save_run, str(tmp_path))[0]
    path = tmp_path / "checkpoint-000001"
    BREAKS[how](path, value)
    (first, untouched), (second, also_untouched) = values_of(pair.attempt(load_in_vain, str(tmp_path), -1))
    assert first == second
    assert str(path) in first
    assert NAMED.get(how, "__1_0.distcp") in first
    assert untouched and also_untouched


def test_a_misfit_on_one_rank_is_refused_on_all_and_nothing_changes(pair, tmp_path):
    pair.run(save_run, str(tmp_path))
    for said, untouched in pair.run(load_in_vain, str(tmp_path), 1):
        assert "loading a checkpoint, on rank 1" in said
        assert "parameter/0.weight" in said
        assert untouched


def test_an_older_checkpoint_can_be_chosen(tmp_path):
    paths = [checkpoint.save(tmp_path, Sharded(odd_state(seed), 0, 1, 0)) for seed in (1, 2)]
    truncate(paths[1] / "__0_0.distcp")
    holder = Sharded({}, 0, 1, 0)
    with pytest.raises(CheckpointError, match="take an older checkpoint"):
        checkpoint.load(tmp_path, holder)
    assert checkpoint.load(paths[0], holder).path == paths[0]
    assert_same_bits(assembled([holder.held]), odd_state(1))


def test_ranks_that_see_different_folders_are_named(pair, tmp_path):
    for rank in range(2):
        checkpoint.save(tmp_path / f"host{rank}", Sharded(odd_state(rank), 0, 1, 0))
    errors = [outcome.error for outcome in pair.attempt(load_own, str(tmp_path))]
    assert errors[0] == errors[1]
    assert "rank 1 finds another checkpoint" in errors[0]


def load_own(folder: str) -> None:
    """Stands for a path that is another disk on every host."""
    link = Path(folder) / "shared"
    real, reader = checkpoint.loading.read_manifest, checkpoint.loading.read_pieces

    def own(path: Path) -> Path:
        return Path(str(path).replace(str(link), f"{folder}/host{HERE.rank}"))

    checkpoint.loading.read_manifest = lambda path: real(own(path))
    checkpoint.loading.read_pieces = lambda path, *rest: reader(own(path), *rest)
    try:
        if HERE.rank == 0:
            shutil.copytree(f"{folder}/host0", link)
        checkpoint.load(link, Sharded({}, HERE.rank, 2, 0))
    finally:
        checkpoint.loading.read_manifest, checkpoint.loading.read_pieces = real, reader


def save_odd_contents(folder: str) -> None:
    checkpoint.save(folder, Sharded(odd_state(6), HERE.rank, HERE.size, 2), extra=HERE.rank)


def test_what_ranks_have_saved_is_read_by_one_process(trio, tmp_path):
    trio.run(save_odd_contents, str(tmp_path))
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
