"""A state that any number of ranks has saved, after any step, goes on at any other number with the same bits."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import ringdp
import torch
import torch.distributed as dist
from local_runs import CELLS, STEPS, begun, differences, digests, expected, leaves_of, model_of, own_loss, trained
from ranks import HERE, error_of
from ringdp.testing import parameters_hash

pytestmark = pytest.mark.usefixtures("one_thread")
of_one_process = cache(lambda name: expected(CELLS[name]))
RESTARTED = ("int4, streaming", "two bits, streaming", "16 bits, int8", "streaming, start")


def saved(name: str, folder: str) -> None:
    """On a rank: its state after each step, in files."""
    model, local = begun(CELLS[name])
    for step in range(1, STEPS):
        trained(local, model, 1)
        torch.save(local.state_dict(), Path(folder) / f"{name}-{step}-{HERE.rank}")


def resumed(name: str, folder: str, ranks: int) -> list[list[Any]]:
    """On a rank: digests of runs that begin with the states of each step, the last one with the first one's object."""
    found, folder = [], Path(folder)
    for step in range(1, STEPS):
        states = [torch.load(folder / f"{name}-{step}-{rank}", weights_only=False) for rank in range(ranks)]
        model, local = begun(CELLS[name])
        if step % 2:  # over a run that has gone elsewhere
            trained(local, model, step % 4)
        local.load_state_dict(states[::-1])
        found.append(digests(trained(local, model, STEPS - step).state_dict()))
    return found


@pytest.mark.parametrize(("name", "before", "after"), [*zip(RESTARTED, (3, 2, 1, 2), (2, 3, 4, 3), strict=True)])
def test_a_run_goes_on_from_every_step(world_of, tmp_path, name, before, after):
    world_of(before).run(saved, name, str(tmp_path))
    by_rank = world_of(after).run(resumed, name, str(tmp_path), before)
    wrong = {s + 1: differences([own[s] for own in by_rank], of_one_process(name)) for s in range(STEPS - 1)}
    assert {step: paths for step, paths in wrong.items() if paths} == {}


def checkpointed(name: str, folder: str, steps: int) -> str:
    """On a rank: saves after so many steps; the outer parameters."""
    model, local = begun(CELLS[name])
    trained(local, model, steps)
    ringdp.checkpoint.save(folder, model, local)
    with local.outer():
        return parameters_hash(model)


def taken_up(name: str, folder: str) -> list[Any]:
    """On a rank: goes on from the checkpoint."""
    model, local = begun(CELLS[name])
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data.zero_()
    trained(local, model, 3)
    ringdp.checkpoint.load(folder, model, local)
    return digests(trained(local, model, STEPS - local.steps).state_dict())


@pytest.mark.parametrize(
    ("name", "steps", "before", "after"),
    [("int4, streaming", 5, 3, 2), ("16 bits, int8", 4, 2, 3), ("tied, frozen", 3, 1, 2), ("post-local", 3, 2, 1)],
)
def test_ringdp_checkpoint(world_of, tmp_path, name, steps, before, after):
    (outer,) = {*world_of(before).run(checkpointed, name, str(tmp_path), steps)}
    by_rank = world_of(after).run(taken_up, name, str(tmp_path))
    assert differences(by_rank, of_one_process(name)) == []
    alone = model_of(CELLS[name])  # without a DiLoCo
    ringdp.checkpoint.load(tmp_path, alone)
    assert parameters_hash(alone) == outer
    whole, _ = expected(CELLS[name], steps)
    prefix = "/workers/0/buffers"
    buffers = dict(leaves_of(dict(alone.named_buffers()), prefix))
    assert buffers == {path: digest for path, digest in whole.items() if path.startswith(prefix)}


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    model, local = begun(CELLS["int8"], backend=None)
    ringdp.checkpoint.save(tmp_path, model, local)
    before = digests(local.state_dict())
    other_model, other = begun({**CELLS["int8"], "every": 5}, backend=None)
    text = "the state is of every=4, this run has every=5"
    assert text in error_of(ringdp.checkpoint.load, tmp_path, other_model, other)
    plain = torch.optim.AdamW(model.parameters())
    assert "the checkpoint is of DiLoCo" in error_of(ringdp.checkpoint.load, tmp_path, model, plain)
    assert "not the one that this DiLoCo trains" in error_of(ringdp.checkpoint.save, tmp_path, model, other)
    two, fewer = begun({**CELLS["int8"], "model": "plain"}, backend=None)
    assert "the checkpoint" in error_of(ringdp.checkpoint.load, tmp_path, two, fewer)
    folder = tmp_path / "plain"
    ringdp.checkpoint.save(folder, model, plain)
    assert "not of a ringdp.DiLoCo" in error_of(ringdp.checkpoint.load, folder, model, local)
    assert digests(local.state_dict()) == before


def test_what_was_loaded_is_a_copy():
    """A state dict has the running tensors, and the run that it is of goes on."""
    cell = {**CELLS["int4, streaming"], "workers": 2}
    model, local = begun(cell, backend=None)
    other_model, other = begun(cell, backend=None)
    other.load_state_dict(trained(local, model, 3).state_dict())
    before = digests(other.state_dict())
    assert before == digests(local.state_dict())
    trained(local, model, 2)
    assert digests(other.state_dict()) == before
    assert digests(trained(other, other_model, 2).state_dict()) == digests(local.state_dict())


def middle_of_a_step() -> list[Any]:
    """On a rank: a state is loaded between the blocks of a synchronous step, which begins again."""
    model, local = begun(CELLS["post-local"])
    trained(local, model, 2)
    states: list[Any] = [None] * HERE.size
    dist.all_gather_object(states, local.state_dict())
    with local.worker(local.workers()[0]):
        (own_loss(model, local.workers()[0], 7) * 3).backward()
    local.load_state_dict(states)
    return digests(trained(local, model, STEPS - 2).state_dict())


def test_a_state_is_loaded_in_the_middle_of_a_step(pair):
    assert differences(pair.run(middle_of_a_step), of_one_process("post-local")) == []


def misfits() -> list[str]:
    """On a rank: errors of states that do not fit, and that nothing has changed."""
    model, local = begun({**CELLS["int4, streaming"], "model": "plain", "workers": 2})
    trained(local, model, 3)
    own = local.state_dict()
    before = digests(own)

    def changed(**values: Any) -> dict[str, Any]:
        state = copy.deepcopy(own)
        state.update(values)
        return state

    other = {**own["settings"], "workers": 3}
    reshaped = copy.deepcopy(own)
    next(iter(reshaped["workers"].values()))["parameters"]["0.weight"] = torch.zeros(2)
    groups = copy.deepcopy(own)
    next(iter(groups["workers"].values()))["inner"][0]["param_groups"][0]["params"].pop()
    kinds = copy.deepcopy(own)
    next(iter(kinds["workers"].values()))["kinds"] = ["SGD"]
    both: list[Any] = [None, None]
    dist.all_gather_object(both, own)
    cases = [
        [{**one, "steps": 3 + 4 * HERE.rank} for one in both],
        [],
        [own],
        [changed(settings=other)],
        [own, changed(steps=2)],
        [own, own],
        [reshaped, changed(workers={1 - HERE.rank: own["workers"][HERE.rank]})],
        [groups, changed(workers={1 - HERE.rank: own["workers"][HERE.rank]})],
        [kinds, changed(workers={1 - HERE.rank: own["workers"][HERE.rank]})],
    ]
    found = [error_of(local.load_state_dict, case, kind=(RuntimeError, ValueError)) for case in cases]
    return [*found, "" if digests(local.state_dict()) == before else "changed"]


def test_what_does_not_fit_is_named_on_all_ranks_and_changes_nothing(pair):
    for own in pair.run(misfits):
        steps, none, part, settings, moments, twice, shape, groups, kinds, after = own
        assert "rank 0: steps=3; rank 1: steps=7" in steps
        assert "no state is given" in none
        # each rank has another part, so that other words are missing
        assert "give the" in part and "of all ranks" in part
        assert "the state is of workers=3, this run has workers=2" in settings
        assert "not of one moment: number 0 has steps 3, number 1 2" in moments
        assert "twice among the states" in twice
        assert "0.weight is float32 [2] in the state, float32 [33, 6] in this model" in shape
        assert "groups of [[3]] parameters in the state, [[4]] in this run" in groups
        assert "are SGD in the state, AdamW in this run" in kinds
        assert after == ""


def test_inner_state_of_another_optimizer_is_refused_before_anything_has_changed():
    cell = {"workers": 2, "every": 4, "model": "plain"}
    model, local = begun({**cell, "inner": "sgd"}, backend=None)
    saved = copy.deepcopy(trained(local, model, 3).state_dict())
    _, other = begun(cell, backend=None)
    before = digests(other.state_dict())
    wanted = "the inner optimizers of worker 0 are SGD in the state, AdamW in this run"
    assert wanted in error_of(other.load_state_dict, saved, kind=ValueError)
    older = {number: {k: v for k, v in its.items() if k != "kinds"} for number, its in saved["workers"].items()}
    local.load_state_dict({**saved, "workers": older})  # which an earlier release has saved
    assert digests(local.state_dict()) == digests(saved)
    assert digests(other.state_dict()) == before


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.ASGD])
def test_inner_state_in_a_wider_type_than_parameters_stays_exact(kind):
    """load_state_dict() of torch's optimizers casts it to the type of parameters."""
    cell = {"workers": 2, "every": 4, "model": "plain", "dtype": "bfloat16"}

    def run() -> tuple[Any, Any]:
        model = model_of(cell)
        return model, ringdp.DiLoCo(model, lambda ps: kind(ps, lr=1e-2), workers=2, every=4)

    (model, local), (other_model, other) = run(), run()
    states = [state for optimizer in trained(local, model, 3).optimizers() for state in optimizer.state.values()]
    assert torch.float32 in {value.dtype for state in states for name, value in state.items() if name != "step"}
    other.load_state_dict(local.state_dict())
    assert digests(other.state_dict()) == digests(local.state_dict())
    ends = [digests(trained(each, its, 3).state_dict()) for each, its in ((local, model), (other, other_model))]
    assert ends[0] == ends[1]
