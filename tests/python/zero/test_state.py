"""State dicts, those of torch's optimizer, and resumes at any stage and number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import BACKENDS, HERE, error_of, group_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import fresh, loss_of
from zero_rig import ADAMW, differences, model, reference, same, steps, wrapped


@pytest.mark.parametrize("stage", [1, 2, 3])
@on_ranks(3, [])
def test_torchs_state_is_loaded(stage: int) -> list[str]:
    """A state of one process is loaded, and training goes on as there."""
    plain, alone = reference("AdamW", 2, ADAMW)
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1.0)
    ddp.module.load_state_dict(plain.state_dict())
    optimizer.load_state_dict(alone.state_dict())
    wrong = differences(ddp, optimizer, plain, alone)
    steps(ddp, optimizer, 2, start=2)
    return wrong + differences(ddp, optimizer, *reference("AdamW", 4, ADAMW))


def into_torch(to: int) -> tuple[bool, bool]:
    """On a rank: whether it has the state; whether torch's optimizer takes it."""
    ddp = wrapped(2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    steps(ddp, optimizer, 2)
    optimizer.consolidate_state_dict(to=to)
    if HERE.rank != to:
        try:
            optimizer.state_dict()
        except RuntimeError:
            return False, True
    plain = model()
    stock = torch.optim.AdamW(plain.parameters(), lr=1.0)
    stock.load_state_dict(optimizer.state_dict())
    _, alone = reference("AdamW", 2, ADAMW)
    pairs = zip(stock.state.values(), alone.state.values(), strict=True)
    return True, all(same(ours[k], theirs[k]) for ours, theirs in pairs for k in theirs)


@pytest.mark.parametrize("to", [0, 2])
def test_torch_takes_the_state(trio, to):
    assert trio.run(into_torch, to) == [(rank == to, True) for rank in range(3)]


@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(2, True)
def test_complex_state_is_collected(backend: str) -> bool:
    """Whether the state of a complex parameter is that of torch's optimizer."""
    pair = [torch.nn.Parameter(torch.arange(5) * (1 + 2j)) for _ in range(2)]
    for parameter in pair:
        parameter.grad = torch.arange(5) * (3 - 1j)
    sharded = ZeroOptimizer(pair[:1], torch.optim.AdamW, process_group=group_of(backend), **ADAMW)
    alone = torch.optim.AdamW(pair[1:], **ADAMW)
    for optimizer in (sharded, alone):
        optimizer.step()
    sharded.consolidate_state_dict(to=1)
    if HERE.rank != 1:
        return True
    found, wanted = (optimizer.state_dict()["state"][0] for optimizer in (sharded, alone))
    return found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in wanted)


def saved_and_loaded(saved: dict[str, Any], weights: dict[str, torch.Tensor]) -> list[str]:
    ddp = wrapped(1)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1.0)
    ddp.module.load_state_dict(weights)
    optimizer.load_state_dict(saved)
    optimizer.consolidate_state_dict(to=0)
    if HERE.rank:
        return []
    found = optimizer.state_dict()["state"]
    return [f"{i} {k}" for i, entry in saved["state"].items() for k, v in entry.items() if not same(v, found[i][k])]


def save() -> tuple[Any, Any]:
    ddp = wrapped(2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    steps(ddp, optimizer, 2)
    optimizer.consolidate_state_dict(to=0)
    return (optimizer.state_dict(), ddp.full_state_dict()) if HERE.rank == 0 else (None, None)


def test_another_number_of_ranks_loads_every_bit(world_of):
    saved, weights = world_of(3).run(save)[0]
    assert world_of(2).run(saved_and_loaded, saved, weights) == [[]] * 2


@on_ranks(2, error=("ValueError", "to=7, must be a rank of 0..1"))
def test_unknown_targets_are_named() -> None:
    optimizer = ZeroOptimizer(wrapped(1).parameters(), torch.optim.AdamW)
    optimizer.consolidate_state_dict(to=7)


@on_ranks(2, True)
def test_masters_are_saved() -> bool:
    """The float32 copy is part of the state, and outlives a round trip."""
    results = []
    module = model(torch.bfloat16)
    optimizer = ZeroOptimizer(module.parameters(), torch.optim.AdamW, master_dtype=torch.float32, **ADAMW)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for to in range(HERE.size):
        optimizer.consolidate_state_dict(to=to)
    saved, weights = optimizer.state_dict(), module.state_dict()
    other = model(torch.bfloat16)
    second = ZeroOptimizer(other.parameters(), torch.optim.AdamW, master_dtype=torch.float32, **ADAMW)
    other.load_state_dict(weights)
    second.load_state_dict(saved)
    for net, stepper in ((module, optimizer), (other, second)):
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        stepper.step()
        stepper.consolidate_state_dict(to=0)
        results.append(stepper.state_dict()["state"] if HERE.rank == 0 else {})
    assert all(entry["master"].dtype == torch.float32 for entry in results[0].values())
    return all(same(results[0][i][k], results[1][i][k]) for i in results[0] for k in results[0][i])


@on_ranks(2, True)
def test_state_is_found_by_its_place_in_the_groups() -> bool:
    """Keys of the saved state are names, and come in another order; places in the groups count."""
    plain, alone = reference("AdamW", 2, ADAMW)
    saved = alone.state_dict()
    keys = {number: f"key {number}" for number in reversed(saved["param_groups"][0]["params"])}
    saved["state"] = {key: saved["state"][number] for number, key in keys.items()}
    saved["param_groups"] = [{**saved["param_groups"][0], "params": sorted(keys.values())}]
    ddp = wrapped(1)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1.0)
    ddp.module.load_state_dict(plain.state_dict())
    optimizer.load_state_dict(saved)
    return not differences(ddp, optimizer, plain, alone)


def stepped_once(*lengths: int) -> dict[str, Any]:
    parameters = [torch.nn.Parameter(torch.ones(length)) for length in lengths]
    optimizer = torch.optim.Adam([{"params": [p]} for p in parameters], lr=0.5)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


@on_ranks(2)
def test_state_of_another_model_is_refused_before_anything_changes() -> None:
    """State of other shapes, of fewer and of more groups."""
    parameters = [(name, torch.nn.Parameter(torch.ones(length))) for name, length in (("a", 4), ("b", 5))]
    groups = [{"params": [named]} for named in parameters]
    optimizer = ZeroOptimizer(groups, torch.optim.Adam, lr=0.1)
    torn = stepped_once(4, 5)
    torn["state"][1]["master"] = torch.ones(())
    for saved, why in (
        (stepped_once(4, 7), "exp_avg of parameter 1 (b) has shape [7] in the state dict, and the parameter [5]"),
        (stepped_once(4, 1), "has shape [1]"),
        (torn, "master of parameter 1 (b) has shape []"),
        (stepped_once(4), "1 param groups, of [1] parameters, and this optimizer 2, of [1, 1]"),
        (stepped_once(4, 5, 6), "3 param groups"),
    ):
        assert why in error_of(optimizer.load_state_dict, saved, kind=ValueError)
        assert [group["lr"] for group in optimizer.param_groups] == [0.1] * 2 and not optimizer.optim.state


class Frozen(torch.nn.Module):
    """A layer that nobody trains, and a parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.frozen = model(), torch.nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.empty = torch.nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.body(x)) + self.empty.sum()


def groups_of(module: Frozen) -> list[dict[str, Any]]:
    return [{"params": [*module.frozen.parameters()]}, {"params": [*module.body.parameters(), module.empty]}]


@pytest.mark.parametrize("stage", [2, 3])
@on_ranks(3, [])
def test_state_of_what_nobody_steps_is_there(stage: int) -> list[str]:
    """Adagrad's state, which begins before the first step; consolidated, loaded and consolidated again."""
    ddp, plain = DistributedDataParallel(fresh(Frozen), zero_stage=stage), fresh(Frozen)
    given = {"lr": 0.05, "initial_accumulator_value": 0.25}
    optimizer = ZeroOptimizer(groups_of(ddp.module), torch.optim.Adagrad, **given)
    alone = torch.optim.Adagrad(groups_of(plain), **given)
    steps(ddp, optimizer, 2)
    one_process(plain, alone, loss_of, ranks=HERE.size, steps=2)
    alone.state[plain.empty]["step"].zero_()  # what nobody steps is not counted
    first = differences(ddp, optimizer, plain, alone)
    loaded = alone.state_dict()
    for entry in loaded["state"].values():
        entry["sum"].add_(1)
    optimizer.load_state_dict(loaded)
    alone.load_state_dict(loaded)
    return first + differences(ddp, optimizer, plain, alone)


# The table of resumes: what N ranks have saved at one stage goes on at any other N and stage as one process would.

checkpoint = ringdp.checkpoint
SAVED_BY, BEFORE, AFTER = 4, 3, 3


def run_of(
    stage: int, backend: str = "ringdp", lr: float = ADAMW["lr"]
) -> tuple[DistributedDataParallel, ZeroOptimizer]:
    """lr: for who loads, another one than the checkpoint's."""
    ddp = wrapped(stage, backend)
    return ddp, ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **{**ADAMW, "lr": lr})


def in_one_process(*stages: tuple[int, int]) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """stages: (ranks, steps), one after the other."""
    plain = model()
    alone = torch.optim.AdamW(plain.parameters(), **ADAMW)
    start = 0
    for ranks, count in stages:
        one_process(
            plain, alone, lambda *at, start=start: loss_of(*at[:2], start + at[2], at[3]), ranks=ranks, steps=count
        )
        start += count
    return plain, alone


def save_on_rank(folder: str, stage: int, backend: str) -> list[str]:
    """On a rank: saves, and trains on without an interruption; what is not as in one process then."""
    ddp, optimizer = run_of(stage, backend)
    steps(ddp, optimizer, BEFORE)
    checkpoint.save(folder, ddp, optimizer, extra={"step": BEFORE}, group=group_of(backend))
    steps(ddp, optimizer, AFTER, start=BEFORE)
    return differences(ddp, optimizer, *in_one_process((HERE.size, BEFORE + AFTER)))


def resume_on_rank(folder: str, stage: int, backend: str) -> tuple[list[str], list[str]]:
    """On a rank: what loading has changed, and what is not as in one process after the steps that follow."""
    ddp, optimizer = run_of(stage, backend, lr=7.0)
    steps(ddp, optimizer, 1)  # a state that must go
    extra = checkpoint.load(folder, ddp, optimizer, group=group_of(backend)).extra
    changed = differences(ddp, optimizer, *in_one_process((SAVED_BY, BEFORE)))
    steps(ddp, optimizer, AFTER, start=extra["step"])
    return changed, differences(ddp, optimizer, *in_one_process((SAVED_BY, BEFORE), (HERE.size, AFTER)))


@pytest.fixture(scope="module")
def saved(world_of, tmp_path_factory) -> Any:
    """saved(2, "ringdp"): the folder of four ranks' checkpoint."""
    known: dict[tuple[int, str], Path] = {}

    def get(stage: int, backend: str) -> Path:
        if (stage, backend) not in known:
            folder = known[stage, backend] = tmp_path_factory.mktemp("saved")
            assert world_of(SAVED_BY).run(save_on_rank, str(folder), stage, backend) == [[]] * SAVED_BY
        return known[stage, backend]

    return get


@pytest.mark.parametrize(
    ("stage", "ranks", "at", "backend"),
    [
        (2, 3, 1, "ringdp"),
        (2, 2, 2, "ringdp"),
        (2, 1, 2, "ringdp"),
        (2, 4, 2, "ringdp"),
        (1, 2, 2, "ringdp"),
        (1, 4, 2, "ringdp"),
        (2, 3, 1, "gloo"),
        (2, 4, 2, "gloo"),
        (3, 3, 1, "ringdp"),
        (3, 2, 2, "ringdp"),
        (3, 1, 3, "ringdp"),
        (3, 4, 3, "ringdp"),
        (2, 3, 3, "ringdp"),
        (3, 3, 3, "gloo"),
    ],
)
def test_no_bit_changes_and_the_run_goes_on_as_one_process(world_of, saved, stage, ranks, at, backend):
    folder = saved(stage, backend)
    assert world_of(ranks).run(resume_on_rank, str(folder), at, backend) == [([], [])] * ranks


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_torchs_own_optimizer_goes_on(saved, stage):
    plain = model()
    alone = torch.optim.AdamW(plain.parameters(), lr=7.0)
    checkpoint.load(saved(stage, "ringdp"), plain, alone)
    one_process(plain, alone, lambda *at: loss_of(*at[:2], BEFORE + at[2], at[3]), ranks=1, steps=AFTER)
    assert unequal((plain, alone), in_one_process((SAVED_BY, BEFORE), (1, AFTER))) == []


def unequal(found: Any, expected: Any) -> list[str]:
    """Names of tensors and groups of a plain module and torch's optimizer that are not equal."""
    (module, optimizer), (other, stock) = found, expected
    wrong = [name for (name, a), b in zip(module.named_parameters(), other.parameters(), strict=True) if not same(a, b)]
    here, there = optimizer.state_dict(), stock.state_dict()
    wrong += ["groups"] * (here["param_groups"] != there["param_groups"])
    wrong += ["state"] * (here["state"].keys() != there["state"].keys())
    for index, entry in there["state"].items():
        wrong += [f"state {index} {key}" for key in entry if not same(here["state"][index][key], entry[key])]
    return wrong


@pytest.mark.parametrize("at", [1, 2, 3])
def test_torchs_own_optimizer_is_taken_up(world_of, tmp_path, at):
    checkpoint.save(tmp_path, *in_one_process((SAVED_BY, BEFORE)), extra={"step": BEFORE})
    assert world_of(3).run(resume_on_rank, str(tmp_path), at, "ringdp") == [([], [])] * 3


@pytest.mark.parametrize("stage", [1, 2, 3])
@on_ranks(2, True)
def test_fp32_copies_of_a_class_without_state_are_collected(stage: int) -> bool:
    """A resumed training of bfloat16 parameters by plain SGD goes on with what their float32 copies say."""

    def made() -> tuple[DistributedDataParallel, ZeroOptimizer]:
        ddp = DistributedDataParallel(model(torch.bfloat16), zero_stage=stage)
        return ddp, ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=1e-4, master_dtype=torch.float32)

    def train(ddp: DistributedDataParallel, optimizer: ZeroOptimizer, steps: int) -> None:
        for step in range(steps):
            optimizer.zero_grad()
            ddp(torch.full((2, 12), 1.0 + step + HERE.rank, dtype=torch.bfloat16)).float().sum().backward()
            optimizer.step()

    ddp, optimizer = made()
    optimizer.consolidate_state_dict()
    is_empty_at_first = HERE.rank != 0 or not optimizer.state_dict()["state"]
    train(ddp, optimizer, 3)
    optimizer.consolidate_state_dict()
    saved = [optimizer.state_dict() if HERE.rank == 0 else None]
    dist.broadcast_object_list(saved)
    whole = ddp.full_state_dict()
    other, resumed = made()
    other.module.load_state_dict(whole)
    resumed.load_state_dict(saved[0])
    train(ddp, optimizer, 3)
    train(other, resumed, 3)
    mine, theirs = ddp.full_state_dict(), other.full_state_dict()
    return is_empty_at_first and all(torch.equal(mine[name], theirs[name]) for name in mine)


@on_ranks(2, ["saving", "saved", "loading", "loaded"])
def test_hooks_on_state_dicts_run() -> list[str]:
    """As torch's optimizers call them; what a hook makes of a dict is what is saved, and what is loaded."""
    ddp = wrapped(2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    steps(ddp, optimizer, 1)
    told = []
    optimizer.register_state_dict_pre_hook(lambda _: told.append("saving"))
    optimizer.register_state_dict_post_hook(lambda _, found: told.append("saved") or {**found, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, found: told.append("loading") or with_rate(found, 0.25))
    optimizer.register_load_state_dict_post_hook(lambda _: told.append("loaded"))
    optimizer.consolidate_state_dict()
    saved = [optimizer.state_dict() if HERE.rank == 0 else None]
    dist.broadcast_object_list(saved)
    if HERE.rank != 0:
        told += ["saving", "saved"]
    assert saved[0]["extra"] == 1
    optimizer.load_state_dict(saved[0])
    assert [group["lr"] for group in optimizer.param_groups] == [0.25]
    return told


def with_rate(found: dict[str, Any], rate: float) -> dict[str, Any]:
    return {**found, "param_groups": [{**group, "lr": rate} for group in found["param_groups"]]}
