"""One format: what shards save is what torch's optimizer saves in one process, and each takes up the other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ringdp
import torch
from odd_run import OPTIMIZERS, OddRun
from ranks import HERE
from ringdp.checkpoint import Contents
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import loss_of as mlp_loss
from zero_rig import ADAMW, differences, reference, same, steps, wrapped

checkpoint = ringdp.checkpoint


def save(folder: str, kind: str, stage: int | None) -> None:
    """On a rank, or in one process."""
    run = OddRun(kind, stage)
    run.steps(3)
    checkpoint.save(folder, run.wrapped, run.optimizer)


def load_and_save(folder: str, kind: str, stage: int | None) -> str:
    """Into a run that has another state; the path of what it saves then, and nothing else is in `folder`."""
    run = OddRun(kind, stage, lr=5.0)
    run.steps(1)
    checkpoint.load(folder, run.wrapped, run.optimizer)
    return str(checkpoint.save(folder, run.wrapped, run.optimizer, keep=1))


def unequal(found: Contents, expected: Contents) -> list[str]:
    """Tensors, and settings as a whole, that differ; but for the state of parameters without elements."""
    wrong = ["settings"] * (settings_of(found) != settings_of(expected))
    wrong += ["kinds"] * (found.tensors.keys() != expected.tensors.keys())
    for kind, tensors in expected.tensors.items():
        there = {name: t for name, t in tensors.items() if kind == "parameter" or name != "empty"}
        here = {n: t for n, t in found.tensors.get(kind, {}).items() if kind == "parameter" or n != "empty"}
        wrong += sorted(f"{kind}/{name}" for name in there.keys() ^ here.keys())
        wrong += [f"{kind}/{name}" for name in there.keys() & here.keys() if not same(there[name], here[name])]
    return wrong


def settings_of(contents: Contents) -> dict[str, Any]:
    optimizer = contents.settings["optimizer"]
    values = {name: entry for name, entry in optimizer["values"].items() if name != "empty"}
    return {**optimizer, "values": values}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_shards_are_saved_as_one_process_saves_and_travel_without_a_change(trio, pair, kind, stage, tmp_path):
    alone, sharded = tmp_path / "alone", tmp_path / "sharded"
    save(str(alone), kind, None)
    trio.run(save, str(sharded), kind, stage)
    expected = checkpoint.read(alone)
    assert unequal(checkpoint.read(sharded), expected) == []
    pair.run(load_and_save, str(sharded), kind, 3 - stage)
    assert unequal(checkpoint.read(sharded), expected) == []
    load_and_save(str(sharded), kind, None)
    assert unequal(checkpoint.read(sharded), expected) == []


def test_the_odd_training_has_all_that_the_format_must_carry(tmp_path):
    """Else the tests above would prove nothing of it."""
    save(str(tmp_path), "adamw", None)
    contents = checkpoint.read(tmp_path)
    assert set(contents.tensors) == {"parameter", "buffer", "step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    assert set(contents.tensors["parameter"]) - set(contents.tensors["exp_avg"]) == {
        *("frozen.weight", "frozen.bias", "unused.weight", "unused.bias")
    }
    assert "second.weight" not in contents.tensors["parameter"]
    assert [group["lr"] for group in contents.settings["optimizer"]["groups"]] == [0.02 * 0.9**3, 0.01 * 0.9**3]


def save_fresh(folder: str) -> None:
    run = OddRun("adamw", None)
    checkpoint.save(folder, run.wrapped, run.optimizer)


def test_state_that_was_not_saved_does_not_stay(pair, tmp_path):
    save_fresh(str(tmp_path))
    expected = checkpoint.read(tmp_path)
    pair.run(load_and_save, str(tmp_path), "adamw", 2)
    assert set(expected.tensors) == {"parameter", "buffer"}
    assert unequal(checkpoint.read(tmp_path), expected) == []


def train(folder: str, how: str) -> list[str]:
    """On a rank: a training that is saved while it goes on, at once or in the background."""
    run = OddRun("adamw", 2)
    run.steps(2)
    if how == "background":
        pending = checkpoint.save_async(folder, run.wrapped, run.optimizer)
        run.steps(2, start=2)
        pending.wait()
    else:
        checkpoint.save(folder, run.wrapped, run.optimizer)
    return []


def test_in_the_background_the_state_at_the_call_is_written(trio, tmp_path):
    for how in ("background", "at once"):
        trio.run(train, str(tmp_path / how), how)
    assert unequal(checkpoint.read(tmp_path / "background"), checkpoint.read(tmp_path / "at once")) == []


def half_a_step(folder: str) -> tuple[str, list[str]]:
    """On a rank: what save says between a backward pass that steps and its step(); what differs after a load then."""
    ddp = wrapped(2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, overlap_with_ddp=True, **ADAMW)
    steps(ddp, optimizer, 2)
    checkpoint.save(folder, ddp, optimizer)
    optimizer.zero_grad()
    mlp_loss(ddp, HERE.rank, 2, 0).backward()
    said = ""
    try:
        checkpoint.save(folder, ddp, optimizer)
    except checkpoint.CheckpointError as error:
        said = str(error)
    checkpoint.load(folder, ddp, optimizer)
    steps(ddp, optimizer, 1, start=2)
    return said, differences(ddp, optimizer, *reference("AdamW", 3, ADAMW))


def test_half_a_step_is_not_saved_and_a_checkpoint_mends_it(pair, tmp_path):
    for said, wrong in pair.run(half_a_step, str(tmp_path)):
        assert "saving a checkpoint, on rank 0 (and on rank 1)" in said and "step() has not been called since" in said
        assert wrong == []
    assert [path.name for path in sorted(tmp_path.glob("checkpoint-*"))] == ["checkpoint-000001"]


def everything(run: OddRun) -> list[bytes]:
    """The bits of all that a failed load must not touch."""
    inner = run.optimizer._optimizer
    tensors = [*run.model.parameters(), *run.model.buffers()]
    tensors += [v for entry in inner.state.values() for v in entry.values()]
    settings = [
        {k: v for k, v in g.items() if k != "params"} for g in (*run.optimizer.param_groups, *inner.param_groups)
    ]
    return [bytes(t.detach().contiguous().flatten().view(torch.uint8).tolist()) for t in tensors] + [
        repr([settings, torch.get_rng_state().tolist()]).encode()
    ]


def load_in_vain(folder: str, kind: str, stage: int) -> tuple[str, bool]:
    """On a rank: the error, and whether everything is as it was."""
    run = OddRun(kind, stage)
    run.steps(2)
    before = everything(run)
    try:
        checkpoint.load(folder, run.wrapped, run.optimizer)
    except checkpoint.CheckpointError as error:
        return str(error), everything(run) == before
    return "", False


@pytest.mark.parametrize("file", ["__1_0.distcp", ".metadata", "ringdp.json"])
@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_a_damaged_checkpoint_changes_nothing_and_its_file_is_named(pair, file, how, tmp_path):
    pair.run(save, str(tmp_path), "adamw", 2)
    damage(next(tmp_path.glob(f"checkpoint-*/{file}")), how)
    outcomes = pair.run(load_in_vain, str(tmp_path), "adamw", 2)
    assert outcomes[0] == outcomes[1]
    said, untouched = outcomes[0]
    assert file in said and untouched


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        at = len(content) // 2
        path.write_bytes(content[:at] + bytes(255 - byte for byte in content[at : at + 200]) + content[at + 200 :])


def test_another_optimizers_checkpoint_is_refused(pair, tmp_path):
    pair.run(save, str(tmp_path), "sgd", 1)
    for said, untouched in pair.run(load_in_vain, str(tmp_path), "adamw", 2):
        assert "checkpoint is of SGD, this optimizer is AdamW" in said and "checkpoint-000001" in said
        assert untouched
