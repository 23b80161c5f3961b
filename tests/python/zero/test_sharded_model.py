"""A model at stage 3: whole again on demand, saved and loaded by torch, with the bits of one process."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import parameters_hash
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import fresh, loss_of
from unit_models import MODELS, made
from zero_rig import ADAMW, same, steps


@on_ranks(2, error="batch of 0 samples")
def test_no_loss_at_all_is_refused() -> None:
    ddp, _ = made("stack")
    ddp.backward(None, weight=0)


def freed(ddp: Any) -> bool:
    """Whether no parameter can be read, while its shape can."""
    for parameter in ddp.module.parameters():
        assert parameter.numel() == math.prod(parameter.shape)
        try:
            parameter.sum()
        except RuntimeError as error:
            assert "is read outside the forward" in str(error)
        else:
            return False
    return True


@on_ranks(2, [True] * 6)
def test_parameters_are_there_in_between_only() -> list[bool]:
    """What is freed after what."""
    ddp, optimizer = made("stack")
    found = [freed(ddp)]
    loss = loss_of(ddp, HERE.rank, 0, 0)
    found.append(freed(ddp))
    loss.backward()
    found.append(freed(ddp))
    optimizer.step()
    optimizer.zero_grad()
    found.append(freed(ddp) and all(p.grad is None for p in ddp.parameters()))
    with torch.no_grad():
        ddp.eval()(torch.ones(2, 12))
    found.append(freed(ddp))
    with ddp.no_sync():
        loss_of(ddp, HERE.rank, 0, 0).backward()
    found.append(freed(ddp) and all(p.grad is not None for p in ddp.parameters()))
    return found


def facts() -> list[Any]:
    """On a rank: units in the order in which they were gathered, and how many ahead."""
    ddp, optimizer = made("stack")
    steps(ddp, optimizer, 2)
    seen = ddp.gathers()
    text = str(seen)
    assert " gathers, " in text and "exposed" in text
    whole = sum(unit.nbytes for unit in ddp.sharded_model.units)
    assert (
        seen.forward.bytes
        == seen.backward.bytes
        == sum(int(unit.nbytes * (HERE.size - 1) / HERE.size) for unit in ddp.sharded_model.units)
    )
    assert ddp.memory().gathered < whole
    return [seen.forward.order, seen.forward.ahead, seen.backward.order, seen.backward.ahead]


def test_units_are_gathered_once_per_pass_and_ahead_of_use(pair):
    inner = ("first", "blocks.0", "blocks.1", "blocks.2", "last")
    for forward, ahead, backward, behind in pair.run(facts):
        assert forward == ("(model)", *inner) and ahead == 5
        assert set(backward) == {"(model)", *inner} and behind == 5
        assert [u for u in backward if u != "(model)"] == list(inner[::-1])


@on_ranks(2, 2)
def test_one_unit_is_in_use_and_one_on_its_way() -> int:
    """The most units that had memory when one began, beside the root's."""
    ddp, optimizer = made("stack")
    most = 0

    def count(*_: Any) -> None:
        nonlocal most
        most = max(most, sum(u.has_memory for u in ddp.sharded_model.units if u.name != "(model)"))

    for module in ddp.module.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(count)
            module.register_full_backward_hook(count)
    steps(ddp, optimizer, 2)
    return most


class Fails(torch.nn.Module):
    """Raises where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.where = MODELS["stack"](), ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hook = self.inner.blocks[1].mix[0].register_forward_hook(self._raise_forward)
        try:
            y = self.inner(x)
        finally:
            hook.remove()
        return y

    def _raise_forward(self, _: Any, __: Any, output: torch.Tensor) -> None:
        if self.where == "forward":
            raise ArithmeticError("forward")
        if self.where == "backward":
            output.register_hook(self._raise_backward)

    def _raise_backward(self, _: torch.Tensor) -> None:
        raise ArithmeticError("backward")


@on_ranks(2, [True] * 4)
def test_passes_that_raise_leave_nothing_behind() -> list[bool]:
    """Steps that fail leave no trace in those that follow."""
    ddp = DistributedDataParallel(fresh(Fails), zero_stage=3)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    found = []
    for where in ("forward", "backward"):
        ddp.module.where = where
        try:
            loss_of(ddp, HERE.rank, 9, 0).backward()
        except ArithmeticError:
            found.append(True)
        ddp.module.where = ""
        ddp.reducer.reset()
        ddp.zero_grad()
        steps(ddp, optimizer, 1)
        found.append(freed(ddp))
    return found


@on_ranks(2, [True] * 3)
def test_a_graph_may_be_walked_twice_and_beside_another() -> list[bool]:
    """The same graph again, and two graphs at once."""
    ddp, _ = made("stack")
    loss = loss_of(ddp, HERE.rank, 0, 0)
    loss.backward(retain_graph=True)
    once = [s.clone() for s in ddp.reducer.shards()]
    ddp.zero_grad()
    ddp.reducer.prepare_for_backward([])
    loss.backward()
    again = [same(a, b) for a, b in zip(once, ddp.reducer.shards(), strict=True)]
    ddp.zero_grad()
    both = loss_of(ddp, HERE.rank, 0, 0) + loss_of(ddp, HERE.rank, 0, 0)
    both.backward()
    doubled = [torch.equal(a * 2, b) for a, b in zip(once, ddp.reducer.shards(), strict=True)]
    return [all(again), all(doubled), freed(ddp)]


def apart() -> None:
    """On a rank: ranks run equally large blocks in different order."""
    ddp, _ = made("stack")
    if HERE.rank == 1:
        ddp.module.blocks = torch.nn.ModuleList(list(ddp.module.blocks)[::-1])
    ddp(torch.ones(2, 12))


def test_ranks_that_gather_different_units_are_told(world_of):
    world = world_of(2)
    for outcome in world.attempt(apart):
        assert "rank 0: blocks.0" in outcome.error and "rank 1: blocks.2" in outcome.error


@on_ranks(
    2, error=("DistBackendError: Mismatch", "all ranks must run equally many, micro-batches in no_sync() included")
)
def test_ranks_with_different_numbers_of_micro_batches_are_told() -> None:
    """One averages when the other has another pass to go. The group ends with it."""
    group = dist.new_group(list(range(HERE.size)))
    ddp = DistributedDataParallel(torch.nn.Linear(12, 12), process_group=group, zero_stage=3)
    for to_go in reversed(range(2 + HERE.rank)):
        with ddp.no_sync() if to_go else nullcontext():
            ddp(torch.ones(2, 12)).sum().backward()


@on_ranks(2, [True] * 6)
def test_parameters_can_be_read_and_written_inside_a_context() -> list[bool]:
    """The context, with writes and without."""
    ddp, _ = made("tied")
    before = ddp.full_state_dict()
    plain = fresh(MODELS["tied"]).state_dict()
    found = [list(before) == list(plain) and all(same(before[n], plain[n]) for n in plain)]
    with torch.no_grad():
        with ddp.gathered():
            found.append(all(same(p, plain[n]) for n, p in ddp.module.named_parameters()))
            ddp.module.last.weight.fill_(7)
        found.append(same(ddp.full_state_dict()["last.weight"], plain["last.weight"]))
        with ddp.gathered(ddp.module.last, writes=True):
            ddp.module.last.weight.fill_(HERE.rank + 5)
        found.append(bool((ddp.full_state_dict()["last.weight"] == 5).all()))
        with ddp.gathered():
            ddp(torch.ones(2, 12))
            found.append(not freed(ddp))
    return [*found, freed(ddp)]


@on_ranks(2, True)
def test_torch_compile_runs_it_uncompiled() -> bool:
    ddp, _ = made("stack")
    x = torch.ones(2, 12)
    return same(torch.compile(ddp, backend="eager")(x), ddp(x))


@on_ranks(2)
def test_hashes_are_of_whole_parameters() -> None:
    ddp, _ = made("tied")
    assert parameters_hash(ddp) == parameters_hash(ddp.module) == parameters_hash(fresh(MODELS["tied"]))


@on_ranks(2)
def test_shards_are_not_written_while_units_are_gathered() -> None:
    ddp, optimizer = made("stack")
    loss_of(ddp, HERE.rank, 0, 0).backward()
    values = {name: value.clone() for name, value in ddp.full_state_dict().items()}
    with ddp.gathered(next(iter(ddp.module.children()))):
        assert "a step while unit" in error_of(optimizer.step)
        assert "load_state_dict() while unit" in error_of(ddp.module.load_state_dict, values)
    optimizer.step()


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("broken off")


@on_ranks(2, (True, True))
def test_what_a_broken_pass_has_left_is_not_taken_as_current() -> tuple[bool, bool]:
    """Whether values that are loaded after a backward pass that died are those that are collected."""
    ddp, _ = made("stack")
    hook = next(iter(ddp.module.children())).register_forward_hook(lambda module, inputs, output: Broken.apply(output))
    with pytest.raises(RuntimeError, match="broken off"):
        loss_of(ddp, HERE.rank, 0, 0).backward()
    hook.remove()
    loaded = {name: torch.full_like(value, 0.25) for name, value in ddp.full_state_dict().items()}
    ddp.module.load_state_dict(loaded)
    found = ddp.full_state_dict()
    return all(same(found[name], value) for name, value in loaded.items()), freed(ddp)


@pytest.mark.parametrize("how", ["values", "strides", "gathered"])
@on_ranks(2)
def test_data_that_would_be_lost_is_named(how: str) -> None:
    """.data that a freed parameter was given, or a gathered one with other strides."""
    ddp, _ = made("stack")
    weight = next(p for p in ddp.module.parameters() if p.dim() == 2 and p.shape[0] == p.shape[1])
    named = "weight.*was assigned while it was freed" if how == "values" else "weight.*and strides"
    with pytest.raises(RuntimeError, match=f"(?s){named}"):
        if how == "gathered":
            with ddp.gathered(writes=True):
                weight.data = weight.data.t()
        else:
            weight.data = torch.zeros(weight.shape) if how == "values" else weight.data.t()
        ddp.full_state_dict()


def wrapped_in_shards(kind: str = "types", **arguments: Any) -> Any:
    return DistributedDataParallel(fresh(MODELS[kind]), zero_stage=3, **arguments)


@on_ranks(2)
def test_saving_names_the_way_out() -> None:
    ddp = wrapped_in_shards()
    with ddp.gathered():
        whole = [n for n, v in ddp.module.state_dict().items() if not same(v, fresh(MODELS["types"]).state_dict()[n])]
    assert "full_state_dict()" in error_of(ddp.state_dict) and "full_state_dict()" in error_of(ddp.module.state_dict)
    assert whole == []


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("kind", ["types", "frozen", "tied", "strided"])
@on_ranks(3, [])
def test_every_rank_takes_its_part(kind: str, prefix: str) -> list[str]:
    """Names that are not as in the dict, of other dtype and strides, that was loaded."""
    ddp = wrapped_in_shards(kind)
    other = fresh(MODELS[kind], seed=99).state_dict()
    given = {prefix + n: v.double() if v.dtype == torch.float32 else v for n, v in other.items()}
    (ddp if prefix else ddp.module).load_state_dict(given)
    found = ddp.full_state_dict()
    return [n for n in other if not same(found[n], other[n])]


@on_ranks(2)
def test_what_does_not_fit_is_said_as_ever() -> None:
    """What torch says about dicts that do not fit, and that nothing else has changed."""
    ddp = wrapped_in_shards("stack")
    before, other = ddp.full_state_dict(), fresh(MODELS["stack"], seed=99).state_dict()
    short = {n: v for n, v in other.items() if n != "first.bias"}
    load = ddp.module.load_state_dict
    assert "first.bias" in error_of(load, short) and "x" in error_of(load, {**other, "x": 0})
    ddp.module.load_state_dict(before)
    assert load(short, strict=False).missing_keys == ["first.bias"]
    after = ddp.full_state_dict()
    assert all(same(after[n], before[n] if n == "first.bias" else other[n]) for n in other)
    load(before)
    assert "size mismatch" in error_of(load, {**before, "last.weight": before["last.weight"].t()})
    assert all(same(v, before[n]) for n, v in ddp.full_state_dict().items())
    assert "assign" in error_of(lambda: load(before, assign=True))
    with ddp.gathered():
        assert "gathered()" in error_of(load, before)


@on_ranks(2, [True, True])
def test_masters_follow() -> list[bool]:
    """Masters follow what was loaded."""
    ddp = DistributedDataParallel(fresh(MODELS["stack"]).bfloat16(), zero_stage=3)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, master_dtype=torch.float32, **ADAMW)
    ddp.module.load_state_dict({n: torch.full_like(v, 2) for n, v in ddp.full_state_dict().items()})
    for group in optimizer.param_groups:
        group.update(lr=0.0, weight_decay=0.0)
    x = torch.ones(2, 12).bfloat16()
    ddp(x).sum().backward()
    optimizer.step()
    masters = [t for flat in optimizer._flats for t in flat.tensors]
    return [
        all(bool((t == 2).all()) for t in masters),
        all(bool((v == 2).all()) for v in ddp.full_state_dict().values()),
    ]


@on_ranks(2)
def test_copies_and_pickles_are_refused() -> None:
    import copy
    import io

    ddp = wrapped_in_shards("stack")
    loss_of(ddp, HERE.rank, 0, 0).backward()
    assert "full_state_dict()" in error_of(copy.deepcopy, ddp)
    assert "full_state_dict()" in error_of(torch.save, ddp, io.BytesIO())


class Named(torch.nn.Module):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(40, 40))
        self.v = self.w

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w + self.v.sum()


@on_ranks(3, True)
def test_a_parameter_under_two_names_is_loaded() -> bool:
    ddp = DistributedDataParallel(Named(), zero_stage=3)
    ddp.module.load_state_dict({"w": torch.full((40, 40), 3.0), "v": torch.full((40, 40), 3.0)})
    return all(same(value, torch.full((40, 40), 3.0)) for value in ddp.full_state_dict().values())
