"""Steps bucket by bucket, of all buckets in step(), and on devices."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from device_rig import Training, different, one_process
from native import EXECUTORS
from ranks import HERE, error_of, on_ranks, tell, values_of
from ringdp.zero import native
from ringdp.zero.flat import FlatParameters, bucketed
from ringdp.zero.optimizer import ZeroOptimizer
from ringdp.zero.steps import BucketSteps
from small_models import loss_of
from zero_rig import ADAMW, differences, reference, steps, wrapped


def stepped(fuses: bool, prepared: bool) -> tuple[list[bool], int, list[bool]]:
    """On a rank: which parameters have moved as SGD moves them, how often settings were asked for, which have sinks."""
    own = [torch.nn.Parameter(torch.ones(1500)) for _ in range(3)]
    flat = FlatParameters(own, bucketed(own, 1500 * 4, HERE.size), dist.group.WORLD)
    optimizer = torch.optim.SGD(flat.tensors, lr=0.5)
    asked = []
    steps = BucketSteps(flat, optimizer, lambda: asked.append(1), fuses=fuses)
    sinks = steps.sinks()
    if not fuses:
        if prepared:
            steps.prepare([*flat.in_bucket(0), *flat.in_bucket(2)])
        for bucket in (0, 2):
            steps.step_bucket(bucket, {n: torch.ones(flat.pieces[n].length) for n in flat.in_bucket(bucket)})
            flat.gather_stepped(bucket).wait()
    moved = [bool((p == value).all()) for p, value in zip(own, (0.5, 1.0, 0.5), strict=True)]
    return moved, len(asked), [sink is not None for sink in sinks]


@pytest.mark.parametrize("prepared", [False, True])
def test_buckets_are_stepped_one_by_one(pair, prepared):
    assert pair.run(stepped, False, prepared) == [([True] * 3, 2 if prepared else 3, [False] * 3)] * 2


@pytest.mark.parametrize("fuses", [False, True])
@on_ranks(2, True)
def test_settings_are_looked_at_before_it_is_decided_who_steps(fuses: bool) -> bool:
    """Whether the first step with a learning rate in a tensor rounds as torch's does."""
    own = [torch.nn.Parameter(torch.zeros(1500)) for _ in range(2)]  # which hide no bit of a step
    for parameter in own:
        parameter.grad = torch.linspace(-1, 1, 1500)
    flat = FlatParameters(own[:1], bucketed(own[:1], 1500 * 4, HERE.size), dist.group.WORLD)
    optimizer = torch.optim.Adam(flat.tensors, lr=0.5)

    def begin() -> None:
        optimizer.param_groups[0]["lr"] = torch.tensor(0.005)

    steps = BucketSteps(flat, optimizer, begin, fuses=fuses)
    if fuses:
        assert steps.sinks() == [None]
    else:
        steps.prepare(flat.in_bucket(0))
    parts = {n: own[0].grad[flat.pieces[n].part] for n in flat.in_bucket(0)}
    steps.step_bucket(0, parts)
    flat.gather_stepped(0).wait()
    torch.optim.Adam(own[1:], lr=torch.tensor(0.005)).step()
    return torch.equal(*own)


def described(fuses: bool, kind: str) -> str:
    """On a rank: how buckets are stepped."""
    own = [torch.nn.Parameter(torch.ones(1500))]
    flat = FlatParameters(own, bucketed(own, 1500 * 4, HERE.size), dist.group.WORLD)
    optimizer = getattr(torch.optim, kind)(flat.tensors, lr=0.5)
    return BucketSteps(flat, optimizer, lambda: None, fuses=fuses).describe()


def test_how_buckets_are_stepped_is_said(pair):
    one_sweep = "a bucket is reduced and stepped by ringdp's kernel while it is in the cache"
    assert pair.run(described, True, "SGD") == [one_sweep] * 2
    for fuses, kind in ((False, "SGD"), (True, "Adagrad")):
        for said in pair.run(described, fuses, kind):
            assert "then stepped by torch, then gathered: ringdp's kernels are for SGD" in said


def test_sinks_stand_for_one_step_of_all_buckets(pair):
    assert [(asked, sinks) for _, asked, sinks in pair.run(stepped, True, False)] == [(1, [True] * 3)] * 2


class Slowing(torch.optim.Optimizer):
    """Its rate falls with the steps that it counts in its group."""

    element_wise = True

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "k": 0})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * (group["lr"] / (1 + group["k"])))
            group["k"] += 1


@pytest.mark.parametrize(("stage", "overlap"), [(1, False), (2, False), (2, True), (3, True)])
@on_ranks(3, (3, []))
def test_a_class_that_counts_steps_counts_one_on_every_rank(stage: int, overlap: bool) -> tuple[int, list[str]]:
    """Steps that the class has counted, and what differs from one process."""
    ddp = wrapped(stage, bucket_cap_mb=0.001)
    optimizer = ZeroOptimizer(ddp.parameters(), Slowing, overlap_with_ddp=overlap)
    steps(ddp, optimizer, 3)
    torch.optim.Slowing = Slowing  # where the reference looks for it
    try:
        return optimizer.param_groups[0]["k"], differences(ddp, optimizer, *reference("Slowing", 3, {}))
    finally:
        del torch.optim.Slowing


@on_ranks(2)
def test_a_step_that_fails_on_its_way_leaves_the_state_torn() -> None:
    ddp = wrapped(2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    steps(ddp, optimizer, 1)
    optimizer.consolidate_state_dict()
    saved = [None if HERE.rank else optimizer.state_dict()]
    torch.distributed.broadcast_object_list(saved)
    values = {name: value.clone() for name, value in ddp.module.state_dict().items()}
    right = native.run

    def wrong(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    native.run = wrong
    loss_of(ddp, HERE.rank, 1, 0).backward()
    assert error_of(optimizer.step, kind=MemoryError) == "no room"
    native.run = right
    assert "torn" in error_of(optimizer.step) and "torn" in error_of(optimizer.consolidate_state_dict)
    optimizer.zero_grad()
    ddp.module.load_state_dict(values)
    optimizer.load_state_dict(saved[0])
    steps(ddp, optimizer, 2, start=1)
    assert differences(ddp, optimizer, *reference("AdamW", 3, ADAMW)) == []


@pytest.mark.parametrize("stage", [1, 2])
@on_ranks(2, error="modified by an inplace operation")
def test_graphs_from_before_a_step_are_refused_by_autograd(stage: int) -> None:
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
    loss = loss_of(ddp, HERE.rank, 0, 0)
    loss.backward(retain_graph=True)
    optimizer.step()
    with ddp.no_sync():
        loss.backward()


def zeroed(stage: int) -> list[bytes]:
    """On a rank: parameters after a step, and after another one of zeros with momentum."""
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    loss_of(ddp, HERE.rank, 0, 0).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    return [p.detach().numpy().tobytes() for p in ddp.parameters()]


def test_zeros_are_stepped_where_gradients_are_set_to_zero(pair):
    assert pair.run(zeroed, 1) == pair.run(zeroed, 2)


ONE_CALL = "a bucket is reduced and stepped by ringdp's kernel by one call of the device"
FUSED = {**ADAMW, "fused": True}
KEPT: dict[str, Any] = {}  # on a rank: between two calls of a test


def fused(
    library: str, stage: int, model: str, micros: int, executor: str, given: dict[str, Any], gather: str = "step"
) -> list[str]:
    """On a rank: how it steps, and what differs from one process that takes ringdp's fastest step."""
    training = Training(library, stage, model=model, executor=executor, overlap_with_ddp=True, gather=gather, **given)
    said = training.optimizer.describe()
    training.steps(0, 3, micros)
    wrong = different(training.found(), one_process(3, model=model, micros=micros, **given))
    return wrong + [said] * (said != ONE_CALL)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_bits_of_one_process(world_of, stand_in, size, stage):
    world = world_of(size, window_bytes=1 << 20)
    assert world.run(fused, stand_in, stage, "mlp", 1, "SPIN", FUSED) == [[]] * size


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_accumulated_gradients_and_other_settings(world_of, stand_in, stage, executor):
    given = {"lr": 3e-3, "betas": (0.3, 0.99), "amsgrad": True, "maximize": True, "weight_decay": 0.1, "fused": True}
    world = world_of(2, window_bytes=1 << 20)
    assert world.run(fused, stand_in, stage, "mlp", 3, executor, given) == [[]] * 2


@pytest.mark.parametrize("stage", [2, 3])
def test_ranks_without_pieces_take_part(world_of, stand_in, stage):
    world = world_of(3, window_bytes=1 << 20)
    assert world.run(fused, stand_in, stage, "tiny", 1, "SPIN", FUSED) == [[]] * 3


def test_parameters_may_come_in_the_next_forward_pass(world_of, stand_in):
    world = world_of(2, window_bytes=1 << 20)
    assert world.run(fused, stand_in, 2, "mlp", 1, "SPIN", FUSED, "forward") == [[]] * 2


@on_ranks(2, [], window_bytes=1 << 20)
def test_a_loaded_state_is_counted_from_where_it_was(stand_in: str) -> list[str]:
    """What differs after a state was loaded that another number of steps has led to."""
    training = Training(stand_in, 2, overlap_with_ddp=True, **FUSED)
    training.steps(0, 2)
    training.optimizer.consolidate_state_dict()
    saved = [None if HERE.rank else training.optimizer.state_dict()]
    dist.broadcast_object_list(saved)
    values = training.ddp.full_state_dict()
    training.steps(5, 3)
    training.ddp.module.load_state_dict(values)
    training.optimizer.load_state_dict(saved[0])
    training.steps(2, 1)
    return different(training.found(), one_process(3, **FUSED))


@pytest.mark.parametrize(
    ("stage", "overlap", "given"),
    [
        *[(stage, False, given) for stage in (1, 2, 3) for given in (ADAMW, FUSED)],
        *[(stage, True, ADAMW) for stage in (2, 3)],
    ],
)
@on_ranks(2, [], window_bytes=1 << 20)
def test_torch_steps_where_nothing_else_was_asked_for(
    stand_in: str, stage: int, overlap: bool, given: dict[str, Any]
) -> list[str]:
    """What differs from one process on the device, to the last bit unless torch's fused step runs."""
    training = Training(stand_in, stage, overlap_with_ddp=overlap, **given)
    training.steps(0, 3)
    right = one_process(3, gpu=training.gpu, **given)
    said = training.optimizer.describe()
    return different(training.found(), right, exact="fused" not in given) + [said] * ("by torch" not in said)


def said(library: str, kind: str, given: dict[str, Any], groups: int) -> tuple[str, bool]:
    """On a rank: why buckets are stepped apart, and whether they still are stepped."""
    training = Training(library, 2, kind=kind, groups=groups, overlap_with_ddp=True, **given)
    text = training.optimizer.describe()
    before = training.ddp.full_state_dict()["0.weight"].cpu()
    training.steps(0, 1)
    return text, not torch.equal(training.ddp.full_state_dict()["0.weight"].cpu(), before)


@pytest.mark.parametrize(
    ("kind", "given", "groups", "window", "why"),
    [
        ("SGD", {"lr": 0.1}, 2, 1 << 20, "SGD has no kernel on devices, only Adam and AdamW have"),
        ("AdamW", ADAMW, 2, 1 << 20, "without fused=True"),
        ("AdamW", FUSED, 1, 1 << 20, "parameters of the wrapper are missing"),
        ("AdamW", FUSED, 2, 0, "window_bytes is 0"),
    ],
)
def test_where_it_cannot_be_it_says_why(world_of, stand_in, kind, given, groups, window, why):
    for text, moved in world_of(2, window_bytes=window).run(said, stand_in, kind, given, groups):
        assert "a bucket is reduced, then stepped by torch, then gathered" in text
        assert why in text
        assert moved


def begin(library: str, executor: str) -> list[str]:
    """On a rank: a training that has made a step."""
    KEPT["training"] = Training(library, 2, executor=executor, overlap_with_ddp=True, **FUSED)
    KEPT["training"].steps(0, 1)
    KEPT["training"].gpu.synchronize()
    return [KEPT["training"].optimizer.describe()]


def backward() -> None:
    """On a rank: a pass, of which rank 1 comes no farther than its first bucket, which all have stepped then."""
    training = KEPT["training"]
    training.backward(1, ends=HERE.rank == 0)
    with training.gpu.stream(3):
        training.optimizer._stepping._sinks[0].wait()
    training.gpu.synchronize(3)


def bereaved(begins: bool) -> tuple[list[str], set[bool]]:
    """On rank 0, alone: errors of the pass, of step(), of saving and of the next pass; whether parameters are NaN."""
    training = KEPT["training"]
    optimizer = training.optimizer
    calls = [
        lambda: (training.backward(1) if begins else None, tell("begun")),
        lambda: (training.gpu.synchronize(), dist.barrier(training.group, async_op=True).wait(timedelta(seconds=20))),
        optimizer.step,
        optimizer.consolidate_state_dict,
        lambda: training.backward(2),
    ]
    errors = [error_of(call) for call in calls]
    return errors, {bool(p.detach().cpu().isnan().all()) for p in training.ddp.module.parameters()}


@pytest.mark.parametrize("within_a_pass", [False, True])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_rank_that_dies_leaves_nothing_that_could_be_saved(run_on_fresh_ranks, stand_in, executor, within_a_pass):
    world = run_on_fresh_ranks(2, window_bytes=1 << 20)
    world.join()
    assert world.run(begin, stand_in, executor) == [[ONE_CALL]] * 2
    if within_a_pass:
        world.run(backward)
    world.signal(1, signal.SIGSTOP)  # so that the pass begins before it is lost
    world.begin(bereaved, not within_a_pass, ranks=[0])
    world.store.wait(["begun"])
    world.kill(1)
    errors, are_void = values_of(world.finish([0]))[0]
    assert "PeerLost: rank 1 (pid " in errors[0] + errors[1]
    assert "PeerLost: rank 1 (pid " in errors[2] or "torn" in errors[2]
    assert "step() has not been called since" in errors[3] or "torn" in errors[3]
    assert "step() has not been called since" in errors[4] or "torn" in errors[4]
    assert are_void == ({True, False} if within_a_pass else {True})
