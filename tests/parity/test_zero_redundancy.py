"""What PyTorch's own tests require of ZeroRedundancyOptimizer, required of torch's class and of ringdp's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of, group_of
from redundancy import BACKEND, CLASSES, layers, noise, one, passed_on, sharded
from ringdp.ddp.wrapper import DistributedDataParallel
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as Stock
from torch.optim import SGD, AdamW


class WithoutClosure(SGD):
    """A step that takes nothing."""

    element_wise = True

    def step(self) -> None:
        """SGD's."""
        super().step()


class WithArgument(SGD):
    """A step that takes a list."""

    element_wise = True

    def step(self, closure: Any = None, seen: list[int] | None = None) -> None:
        """SGD's."""
        super().step()
        seen.append(5)


class WithNewKey(SGD):
    """A step that adds to its groups."""

    element_wise = True

    def step(self, closure: Any = None) -> None:
        """SGD's."""
        super().step()
        self.param_groups[0]["new"] = 0.25


@pytest.fixture(params=[2, 3])
def world(request, world_of):
    """Two ranks, and three, over which nothing divides evenly."""
    return world_of(request.param)


def reloaded(kind: str) -> list[float]:
    x = one()
    first = sharded(kind, [x], lr=0.1, momentum=0.9)
    x.backward()
    first.step()
    first.zero_grad()
    saved = passed_on(first)
    group = saved["param_groups"][0]
    assert all(group[key] == value for key, value in first.param_groups[0].items() if key != "params")
    buffers = [saved["state"][0]["momentum_buffer"].item()]
    second = sharded(kind, [x], lr=0.01)
    second.load_state_dict(saved)
    x.backward()
    second.step()
    buffers.append(passed_on(second)["state"][0]["momentum_buffer"].item())
    return [x.item(), second.param_groups[0]["lr"], second.param_groups[0]["momentum"], *buffers]


def test_a_state_dict_carries_values_and_settings_to_another(world):
    ours, torchs = world.run(reloaded, "ringdp"), world.run(reloaded, "torch")
    assert ours == torchs
    assert ours[0] == pytest.approx([0.71, 0.1, 0.9, 1.0, 1.9])


def stepped_by(kind: str, name: str) -> tuple[float, list[int], float | None]:
    x, seen = one(), []
    optimizer = sharded(kind, [x], globals()[name], lr=0.1)
    x.backward()
    optimizer.step(**({"seen": seen} if name == "WithArgument" else {}))
    return x.item(), seen, optimizer.param_groups[0].get("new")


@pytest.mark.parametrize("name", ["WithoutClosure", "WithArgument", "WithNewKey"])
def test_classes_with_steps_of_their_own(world, name):
    ours, torchs = world.run(stepped_by, "ringdp", name), world.run(stepped_by, "torch", name)
    assert [values[0] for values in ours] == [values[0] for values in torchs] == pytest.approx([0.9] * len(ours))
    # The rank that owns the parameter steps; which one that is differs.
    assert ([5] in [seen for _, seen, _ in ours] and [5] in [seen for _, seen, _ in torchs]) or name != "WithArgument"
    assert {new for *_, new in ours} | {new for *_, new in torchs} <= {None, 0.25}
    assert any(new == 0.25 for *_, new in ours) == (name == "WithNewKey")


def scheduled(kind: str) -> bool:
    x, y = one(), one()
    optimizer, plain = sharded(kind, [x], lr=0.01), SGD([y], lr=0.01)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1) for o in (optimizer, plain)]
    for _ in range(5):
        for tensor, stepper, schedule in ((x, optimizer, schedules[0]), (y, plain, schedules[1])):
            stepper.zero_grad()
            tensor.backward()
            stepper.step()
            schedule.step()
    return torch.equal(x, y)


@pytest.mark.parametrize("kind", CLASSES)
def test_schedulers_reach_the_shards(world, kind):
    assert all(world.run(scheduled, kind))


def constructed(kind: str) -> list[str]:
    """What each of these params gives: an error's type, or how many groups there are, inside and outside."""
    model = layers()
    weights, biases = [layer.weight for layer in model], [layer.bias for layer in model]
    inputs = [
        [],
        torch.randn(1),
        1.2,
        [*model.parameters(), 42],
        [torch.sparse_coo_tensor(size=(2, 3))],
        [{"params": weights}, {"params": [*biases, weights[0]]}],
        [weights[0] * 1.0],
        [{"params": weights, "weight_decay": 0.0}, {"params": biases, "weight_decay": 0.01}],
        model.parameters(),
        list(model.parameters()),
        {weights[0]: None}.keys(),
    ]
    said = []
    for params in inputs:
        try:
            made = sharded(kind, params, lr=0.01)
            said.append(f"{len(made.param_groups)} {len(made.optim.param_groups)}")
        except (TypeError, ValueError) as error:
            said.append(type(error).__name__)
    return said


def test_the_constructor_takes_and_refuses_the_same(world):
    ours = world.run(constructed, "ringdp")
    assert ours == world.run(constructed, "torch")
    assert {"ValueError", "TypeError", "2 2", "1 1"} == set(ours[0])


def joined() -> str:
    return error_of(Join, [sharded("ringdp", [one()], lr=0.1)], kind=NotImplementedError)


def test_join_is_refused_by_name(world):
    assert all("Join" in said for said in world.run(joined))


def consolidated(kind: str) -> list[str]:
    """Whether this rank has a state dict, before and after, and how much is in it."""
    model = layers()
    optimizer = sharded(kind, model.parameters(), lr=1e-3, momentum=0.99)
    model(noise(0, 3, 20)).sum().backward()
    optimizer.step()
    said = []
    for to in (None, 0, HERE.size - 1):
        if to is not None:
            optimizer.consolidate_state_dict(to=to)
        try:
            said.append(str(len(optimizer.state_dict()["state"])))
        except RuntimeError:
            said.append("RuntimeError")
        optimizer.step()
        if to is not None:  # torch's class keeps what it has collected
            optimizer.load_state_dict(passed_on(optimizer))
    return said


def test_only_the_rank_that_collected_has_a_state_dict(world):
    ours = world.run(consolidated, "ringdp")
    assert [said[:2] for said in ours] == [said[:2] for said in world.run(consolidated, "torch")]
    assert [said[0] for said in ours] == ["RuntimeError"] * world.size
    for rank, said in enumerate(ours):
        assert said[1:] == ["6" if rank == to else "RuntimeError" for to in (0, world.size - 1)]


LOOSE = {"atol": 1e-6, "rtol": 1e-5}  # torch's class steps other tensors than the plain optimizer: they may differ
BLOCK = 1024  # elements: shards cut parameters at multiples of it only


def mixed(kind: str) -> list[bool]:
    """Parameters of two dtypes, which torch's class refuses; ours gives those of the plain optimizer."""
    params = [noise(i, 5, 3).to(t).requires_grad_() for i, t in enumerate((torch.float32, torch.float64))]
    plain = [p.detach().clone().requires_grad_() for p in params]
    optimizers = [sharded(kind, params, AdamW, lr=0.1), AdamW(plain, lr=0.1)]
    for optimizer, tensors in zip(optimizers, (params, plain), strict=True):
        for p in tensors:
            p.square().sum().backward()
        optimizer.step()
    return [torch.equal(a, b) for a, b in zip(params, plain, strict=True)]


def test_parameters_may_have_several_dtypes(world):
    assert world.run(mixed, "ringdp") == [[True, True]] * world.size
    assert all("same dense type" in outcome.error for outcome in world.attempt(mixed, "torch"))


def with_closure(kind: str, views: bool) -> list[float]:
    x, target = torch.tensor([HERE.rank + 1.0]), torch.tensor([HERE.rank + 4.0])
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 1.0)
    nn.init.constant_(model.bias, 2.0)
    optimizer = sharded(kind, model.parameters(), lr=0.1, parameters_as_bucket_view=views)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(x), target)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group_of(BACKEND[kind]))
            p.grad /= HERE.size
        return loss

    loss = optimizer.step(closure=closure)
    optimizer.zero_grad()
    gone = all(p.grad is None for p in model.parameters())
    return [loss.item(), model.weight.item(), model.bias.item(), float(gone)]


@pytest.mark.parametrize("views", [False, True])
def test_a_closure_is_called_once_and_its_loss_returned(world, views):
    ours, torchs = (world.run(with_closure, kind, views) for kind in CLASSES)
    assert ours == torchs
    assert ours[0] == pytest.approx([1.0, 1.0 + 0.1 * (world.size + 1) / 2, 2.1, 1.0])


def in_groups(kind: str) -> list[bool]:
    """Groups at once, and one after the other, against the plain optimizer; a frozen parameter among them."""
    models = [layers() for _ in range(3)]
    halves = [([m.weight for m in model], [m.bias for m in model]) for model in models]
    models[0][0].weight.requires_grad = models[1][0].weight.requires_grad = models[2][0].weight.requires_grad = False

    def groups(half: tuple[list[Any], list[Any]]) -> list[dict[str, Any]]:
        return [{"params": half[0], "weight_decay": 0.0}, {"params": half[1], "weight_decay": 0.01}]

    late = sharded(kind, halves[1][0], AdamW, lr=0.01, weight_decay=0.0)
    late.add_param_group({"params": halves[1][1], "weight_decay": 0.01})
    assert len(late.param_groups) == len(late.optim.param_groups) == 2
    optimizers = [sharded(kind, groups(halves[0]), AdamW, lr=0.01), late, AdamW(groups(halves[2]), lr=0.01)]
    for step in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(noise(step, 8, 20)).sum().backward()
            optimizer.step()
    together = zip(*(model.parameters() for model in models), strict=True)
    return [torch.allclose(a, c, **LOOSE) and torch.allclose(b, c, **LOOSE) for a, b, c in together]


@pytest.mark.parametrize("kind", CLASSES)
def test_groups_at_once_or_later_are_those_of_the_plain_optimizer(world, kind):
    assert world.run(in_groups, kind) == [[True] * 6] * world.size


def shares(numels: tuple[int, ...]) -> tuple[int, int]:
    """This rank's elements, and whether the step still reached all of them."""
    params = [noise(i, n).requires_grad_() for i, n in enumerate(numels)]
    before = [p.detach().clone() for p in params]
    optimizer = sharded("ringdp", params, lr=1.0)
    for p in params:
        p.sum().backward()
    optimizer.step()
    done = all(torch.equal(p, b - 1.0) for p, b in zip(params, before, strict=True))
    return sum(p.numel() for group in optimizer.optim.param_groups for p in group["params"]), int(done)


@pytest.mark.parametrize("numels", [(9, 7, 5, 3), (3, 0, 1), (5000, 1, 3071, 40_000), (1,)])
def test_uneven_parameters_are_dealt_out_once_also_where_ranks_get_none(world, numels):
    own = world.run(shares, numels)
    blocks = sum(-(-n // BLOCK) for n in numels)
    assert sum(elements for elements, _ in own) == sum(numels)
    assert max(elements for elements, _ in own) <= -(-blocks // world.size) * BLOCK
    assert all(done for _, done in own)


def with_wrapper(kind: str, name: str, maximize: bool, wrapper: str) -> list[str]:
    """DDP with the sharded optimizer and with the plain one; then each continues from the other's state."""
    cls, group = getattr(torch.optim, name), group_of(BACKEND[kind])
    given = {"lr": 1e-3, "maximize": maximize}
    wrap = {
        "stock": lambda m: Stock(m, process_group=group, find_unused_parameters=True),
        "ringdp": lambda m: DistributedDataParallel(m, process_group=group, find_unused_parameters=True, zero_stage=1),
    }
    model = layers(2, 3, 3)
    twin = copy.deepcopy(model)
    ddp, other = wrap[wrapper](model), Stock(twin, process_group=group, find_unused_parameters=True)
    optimizer, plain = (
        sharded(kind, ddp.parameters(), cls, process_group=group, **given),
        cls(twin.parameters(), **given),
    )
    wrong = []

    def check(step: int) -> None:
        x = noise(100 * HERE.rank + step, 16, 2)
        for net, stepper in ((ddp, optimizer), (other, plain)):
            stepper.zero_grad()
            net(x).abs().sum().backward()
            stepper.step()
        together = zip(model.parameters(), twin.parameters(), strict=True)
        wrong.extend(f"step {step}" for a, b in together if not torch.allclose(a, b, **LOOSE))

    for step in range(8):
        check(step)
        if step > 4:
            for net in (ddp, other):
                next(net.parameters()).requires_grad = bool(step % 2)
    theirs, ours = copy.deepcopy(plain.state_dict()), passed_on(optimizer)
    plain.load_state_dict(copy.deepcopy(ours))
    optimizer.load_state_dict(copy.deepcopy(theirs))
    check(8)
    plain.load_state_dict(theirs)
    optimizer.load_state_dict(ours)
    check(9)
    return wrong


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
@pytest.mark.parametrize("wrapper", ["stock", "ringdp"])
def test_with_ddp_it_is_the_plain_optimizer_and_their_states_are_exchangeable(world_of, name, maximize, wrapper):
    assert world_of(2).run(with_wrapper, "ringdp", name, maximize, wrapper) == [[]] * 2


def test_torchs_class_passes_the_same_check(world_of):
    assert world_of(2).run(with_wrapper, "torch", "AdamW", False, "stock") == [[]] * 2


def in_subgroup(kind: str) -> list[float]:
    """Even ranks train in a group of their own, whose ranks are not the global ones."""
    even = list(range(0, HERE.size, 2))
    group = dist.new_group(even, backend=BACKEND[kind])
    if HERE.rank not in even:
        return []
    model = layers()
    optimizer = sharded(kind, model.parameters(), lr=1e-3, momentum=0.9, process_group=group)
    for step in range(3):
        optimizer.zero_grad()
        model(noise(10 * HERE.rank + step, 3, 20)).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
        optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    known = len(optimizer.state_dict()["state"]) if HERE.rank == 0 else 6
    return [float(known), *torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()]


def test_a_group_of_some_ranks(world_of):
    ours, torchs = (world_of(3).run(in_subgroup, kind) for kind in ("ringdp", "torch"))
    assert ours[0] == ours[2] and ours[1] == [] and ours[0][0] == 6.0
    assert ours[0] == pytest.approx(torchs[0], abs=1e-6)
