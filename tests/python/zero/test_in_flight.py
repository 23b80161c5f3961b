"""In-flight gathers of stepped buckets: waited for by step(), or by the modules that need them."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import BACKENDS, HERE, World, error_of, group_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.zero.flat import FlatParameters, bucketed
from ringdp.zero.in_flight import InFlightBucket
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import fresh, loss_of
from torch import nn
from unit_models import MODELS
from zero_rig import ADAMW, differences, model, reference, same, steps, wrapped


def rig(backend: str) -> tuple[list[torch.nn.Parameter], FlatParameters, InFlightBucket]:
    """Of several shapes and strides, and one without elements."""
    source = torch.Generator().manual_seed(5)
    tensors = [torch.randn(70, 60, generator=source), torch.randn(20, 30).t(), torch.empty(0), torch.tensor(2.0)]
    own = [torch.nn.Parameter(t) for t in tensors]
    group = group_of(backend)
    flat = FlatParameters(own, bucketed(own, 1 << 20, group.size()), group)
    return own, flat, InFlightBucket(flat, 0, {p: f"number {n}" for n, p in enumerate(own)})


@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(3)
def test_a_bucket_goes_and_comes_back(backend: str) -> None:
    """What readers are told, of kept views and writers too; everybody then has every rank's part."""
    torch.manual_seed(3)
    own, flat, away = rig(backend)
    facts = [(p.shape, p.stride(), p.dtype, p.requires_grad, p.data_ptr()) for p in own]
    kept, expected = own[1].detach(), [p.detach() * 2 for p in own]
    own[0].grad = torch.ones_like(own[0])
    with torch.no_grad():
        for tensor in flat.tensors:
            tensor.mul_(2)
    away.start()
    for read, whose in {
        own[0].sum: "parameter number 0",
        own[0].data.zero_: "parameter number 0",
        own[3].item: "parameter number 3",
        kept.sum: "a view that was kept of number 0",
        own[1].data_ptr: "parameter number 1",
    }.items():
        said = error_of(read)
        assert whose in said and "call optimizer.wait() first" in said
    assert [(p.shape, p.stride(), p.dtype, p.requires_grad) for p in own] == [fact[:4] for fact in facts]
    assert own[0].grad is not None and own[2].sum() == 0
    away.wait()
    assert [p.data_ptr() for p in own] == [fact[4] for fact in facts]
    assert all(map(same, own, expected)) and same(kept, expected[1])


@on_ranks(2, True)
def test_what_was_assigned_meanwhile_is_kept() -> bool:
    """A value that was assigned to .data meanwhile is kept."""
    own, flat, away = rig("ringdp")
    away.start()
    own[0].data = torch.full((70, 60), 7.0)
    away.wait()
    flat.restore_views(0)
    return bool((own[0] == 7).all()) and bool((flat.whole(0)[: own[0].numel()] == 7).all())


@on_ranks(2)
def test_a_gather_that_cannot_begin_takes_nothing_away() -> None:
    """Its bucket stays readable."""
    own, flat, away = rig("ringdp")

    def fails(_: torch.Tensor) -> None:
        raise RuntimeError("cannot begin")

    flat.gather_in = fails
    assert error_of(away.start) == "cannot begin"
    assert own[0].sum().isfinite()


@on_ranks(2)
def test_strides_that_were_changed_meanwhile_are_named() -> None:
    """As often as somebody waits."""
    own, _, away = rig("ringdp")
    away.start()
    own[1].data = own[1].data.t()
    for _ in range(2):
        assert "had shape [30, 20] and strides [1, 30]" in error_of(away.wait)
    own[1].data = own[1].data.t()
    away.wait()
    assert own[1].sum().isfinite()


def lazy(ddp: Any, kind: str = "AdamW", **own: Any) -> ZeroOptimizer:
    given = ADAMW if kind == "AdamW" else {"lr": 0.05}
    return ZeroOptimizer(ddp.parameters(), getattr(torch.optim, kind), gather="forward", **given, **own)


def unread(module: nn.Module) -> list[str]:
    """Names of parameters that cannot be read now; their other facts are as ever."""
    found = []
    for name, parameter in module.named_parameters():
        assert parameter.numel() == parameter.shape.numel() and parameter.dim() == len(parameter.stride())
        try:
            parameter.sum()
        except RuntimeError as error:
            assert f"parameter {name} is read" in str(error) and "call optimizer.wait() first" in str(error)
            found.append(name)
    return found


def trained(stage: int, backend: str, kind: str, overlap: bool = False) -> list[str]:
    """On a rank: what is not as in one process after three steps."""
    ddp = wrapped(stage, backend)
    optimizer = lazy(ddp, kind, overlap_with_ddp=overlap)
    steps(ddp, optimizer, 3)
    assert unread(ddp.module) or HERE.size == 1
    return differences(ddp, optimizer, *reference(kind, 3, ADAMW if kind == "AdamW" else {"lr": 0.05}))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_bits_of_one_process(world_of, ranks, stage, backend):
    assert world_of(ranks).run(trained, stage, backend, "AdamW") == [[]] * ranks


@pytest.mark.parametrize("stage", [1, 2])
@on_ranks(2, [])
def test_a_rank_without_samples_waits_for_its_parameters(stage: int) -> list[str]:
    """What is not as in one process where rank 1 has no samples in a step, so no forward pass to wait in."""

    def idle(rank: int, step: int) -> bool:
        return (rank, step) == (1, 1)

    def loss(net: nn.Module, rank: int, step: int, micro: int) -> torch.Tensor:
        return torch.zeros((), requires_grad=True) if idle(rank, step) else loss_of(net, rank, step, micro)

    ddp = wrapped(stage, check_drift=True)
    optimizer = lazy(ddp)
    for step in range(3):
        optimizer.zero_grad()
        if idle(HERE.rank, step):
            ddp.backward(None, weight=0)
        else:
            ddp.backward(loss(ddp, HERE.rank, step, 0), weight=1)
        optimizer.step()
    plain = model()
    alone = torch.optim.AdamW(plain.parameters(), **ADAMW)
    one_process(plain, alone, loss, ranks=HERE.size, steps=3, weights=lambda rank, step: 1 - idle(rank, step))
    return differences(ddp, optimizer, plain, alone)


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_inside_the_backward_pass(trio, backend):
    assert trio.run(trained, 2, backend, "AdamW", True) == [[]] * 3


def test_an_optimizer_that_torch_steps(trio):
    assert trio.run(trained, 2, "ringdp", "Adagrad") == [[]] * 3


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("kind", ["tied", "twice", "frozen", "types", "strided", "segment reentrant"])
@on_ranks(2, [])
def test_models_that_are_hard_to_divide(kind: str, stage: int) -> list[str]:
    """As `trained`, of a model that is hard to divide."""
    ddp = DistributedDataParallel(fresh(MODELS[kind]), zero_stage=stage, bucket_cap_mb=0.005)
    given = [p for p in ddp.parameters() if p.requires_grad]
    optimizer = ZeroOptimizer(given, torch.optim.AdamW, gather="forward", **ADAMW)
    steps(ddp, optimizer, 3)
    assert unread(ddp.module)
    plain = fresh(MODELS[kind])
    alone = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], **ADAMW)
    one_process(plain, alone, loss_of, ranks=HERE.size, steps=3)
    return differences(ddp, optimizer, plain, alone)


@on_ranks(2)
def test_a_layer_waits_for_its_own_parameters_only() -> None:
    """What cannot be read when each layer begins, and after the model's forward."""
    ddp = wrapped(2, bucket_cap_mb=0.001)
    optimizer = lazy(ddp)
    steps(ddp, optimizer, 1)
    seen: list[list[str]] = [unread(ddp.module)]
    for layer in ddp.module:
        layer.register_forward_pre_hook(lambda *_: seen.append(unread(ddp.module)))
    with torch.no_grad():
        loss_of(ddp, HERE.rank, 1, 0)
    left = [sorted({name.split(".")[0] for name in names}) for names in [*seen, unread(ddp.module)]]
    assert left == [["0", "2", "4"], ["2", "4"], ["2", "4"], ["4"], ["4"], [], []]


def readers() -> dict[str, Callable[[Any, ZeroOptimizer], object]]:
    return {
        "state_dict": lambda ddp, _: ddp.state_dict()["module.4.weight"].sum(),
        "of a part": lambda ddp, _: ddp.module[4].state_dict()["weight"].sum(),
        "full_state_dict": lambda ddp, _: ddp.full_state_dict(),
        "load_state_dict": lambda ddp, _: ddp.module[4].load_state_dict(model()[4].state_dict()),
        "consolidate": lambda _, optimizer: optimizer.consolidate_state_dict(),
        "holder": lambda ddp, o: list(o.holder({p: n for n, p in ddp.module.named_parameters()}).pieces()),
        "wait": lambda _, optimizer: optimizer.wait(),
        "step": lambda _, optimizer: optimizer.step(),
    }


@pytest.mark.parametrize("way", readers())
@on_ranks(2, True)
def test_who_reads_waits(way: str) -> bool:
    """Whether the last layer can be read after this, or when step() has sent it again."""
    ddp = wrapped(2, bucket_cap_mb=0.001)
    optimizer = lazy(ddp)
    steps(ddp, optimizer, 1)
    assert "4.weight" in unread(ddp.module)
    ddp.memory()
    assert "4.weight" in unread(ddp.module)
    readers()[way](ddp, optimizer)
    if way == "step":
        optimizer.wait()
    return "4.weight" not in unread(ddp.module) and optimizer.exposed > 0


class Reaches(nn.Module):
    """Its forward reads the weight of a unit below, before that has run or after it."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 96), nn.Tanh(), nn.Linear(96, 96), nn.Linear(96, 3))
        self._before = before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._before:
            x = x + self.layers[3].weight.mean()
        return self.layers(x) + self.layers[3].weight.mean()


def reached(before: bool, waits: bool) -> None:
    """On a rank: two steps, the second with or without waiting for everything first."""
    ddp = DistributedDataParallel(fresh(lambda: Reaches(before)), zero_stage=2, bucket_cap_mb=0.001)
    optimizer = lazy(ddp)
    steps(ddp, optimizer, 1)
    if waits:
        optimizer.wait()
    steps(ddp, optimizer, 1)


def test_a_forward_that_reads_what_belongs_to_another_unit_is_told_so(pair):
    for outcome in pair.attempt(reached, True, False):
        assert "parameter layers.3.weight is read before it has arrived" in outcome.error
    for before, waits in ((False, False), (True, True)):
        assert pair.run(reached, before, waits) == [None] * 2


@on_ranks(2, [])
def test_groups_that_are_added_later_and_micro_batches() -> list[str]:
    """At stage 1, a bucket for each parameter: each is a group that was added later."""
    ddp = wrapped(1)
    first, *rest = ddp.parameters()
    optimizer = ZeroOptimizer([first], torch.optim.AdamW, gather="forward", **ADAMW)
    for parameter in rest:
        optimizer.add_param_group({"params": [parameter]})
    for step in range(3):
        optimizer.zero_grad()
        with ddp.no_sync():
            loss_of(ddp, HERE.rank, step, 0).backward()
        loss_of(ddp, HERE.rank, step, 1).backward()
        optimizer.step()
    plain = model()
    alone = torch.optim.AdamW([{"params": [p]} for p in plain.parameters()], **ADAMW)
    one_process(plain, alone, loss_of, ranks=HERE.size, steps=3, accumulate=2, sync_each=False)
    return differences(ddp, optimizer, plain, alone)


@on_ranks(3, [])
def test_a_rank_without_samples_waits_in_its_next_step() -> list[str]:
    """The last one has no samples, and runs no forward pass that would wait."""
    ddp = wrapped(2)
    optimizer = lazy(ddp)
    last = HERE.rank == HERE.size - 1
    for step in range(3):
        optimizer.zero_grad()
        ddp.backward(None if last else loss_of(ddp, HERE.rank, step, 0, how="sum"), weight=0 if last else 4)
        optimizer.step()
    plain = model()
    alone = torch.optim.AdamW(plain.parameters(), **ADAMW)

    def of_rank(net: Any, rank: int, step: int, micro: int) -> torch.Tensor:
        return loss_of(net, rank, step, micro, how="sum")

    one_process(plain, alone, of_rank, ranks=HERE.size - 1, steps=3, weights=lambda rank, step: 4)
    return differences(ddp, optimizer, plain, alone)


@on_ranks(2, True)
def test_copies_of_the_model_are_free() -> bool:
    """A copy of the model is its own, and waits for nothing that the model waits for."""
    ddp = wrapped(2)
    optimizer = lazy(ddp)
    steps(ddp, optimizer, 1)
    try:
        copy.deepcopy(ddp.module)
        return False
    except RuntimeError as error:
        assert "call optimizer.wait() first" in str(error)
    optimizer.wait()
    other = copy.deepcopy(ddp.module)
    before = [p.detach().clone() for p in other.parameters()]
    steps(ddp, optimizer, 1, start=1)
    loss_of(other, 0, 0, 0)
    other.state_dict()
    return bool(unread(ddp.module)) and all(map(same, before, other.parameters()))


KEPT: dict[str, Any] = {}  # on a rank, between two calls


class Stops(Exception):
    """This rank goes no further."""


def step_of(victim: int) -> None:
    """On a rank: a step from which the victim gets away after its first bucket."""
    ddp = wrapped(2, bucket_cap_mb=0.001)
    optimizer = KEPT["optimizer"] = lazy(ddp)
    KEPT["ddp"] = ddp
    steps(ddp, optimizer, 1)
    loss_of(ddp, HERE.rank, 1, 0).backward()
    if HERE.rank == victim:
        started, start = [], optimizer._gathers_in_flight.start

        def first_only(*which: Any) -> None:
            if started:
                raise Stops
            started.append(start(*which))

        optimizer._gathers_in_flight.start = first_only
    optimizer.step()


def forward_after() -> tuple[list[str], int]:
    """On a rank: errors of two forward passes; how many parameters cannot be read."""
    said = [error_of(loss_of, KEPT["ddp"], HERE.rank, 2, 0) for _ in range(2)]
    return said, len(unread(KEPT["ddp"].module))


def test_the_forward_pass_that_waits_names_who_died():
    with World(3) as world:
        world.join()
        outcomes = world.attempt(step_of, 1)
        assert [o.error.split(":")[0] for o in outcomes] == ["", "Stops", ""]
        world.signal(1, signal.SIGKILL)
        for said, away in world.run(forward_after, ranks=[0, 2]):
            assert all("PeerLost" in text and "rank 1" in text for text in said)
            assert away > 0
