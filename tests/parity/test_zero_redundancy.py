"""What PyTorch's own tests ask of ZeroRedundancyOptimizer's interface, asked of torch's class and ringdp's alike.

Left out: how torch deals parameters out to ranks (ringdp cuts them at equal shards), GPUs, and overlap_with_ddp, which
torch has for communication hooks and ringdp for stages 2 and 3. Join is refused by name.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import HERE
from redundancy import CLASSES, layers, noise, one, passed_on, sharded
from torch.distributed.algorithms.join import Join
from torch.optim import SGD


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
    try:
        Join([sharded("ringdp", [one()], lr=0.1)])
    except NotImplementedError as error:
        return str(error)
    return ""


def test_join_is_refused_by_name(world):
    assert all("Join" in said for said in world.run(joined))


def consolidated(kind: str) -> list[str]:
    """Who has a state dict, before and after, and how much is in it."""
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
