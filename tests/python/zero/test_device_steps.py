"""ZeRO on a device: where one call sums, steps and hands out it has the bits of one process; elsewhere torch steps."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from device_rig import ADAMW, Training, different, one_process
from native import EXECUTORS
from ranks import HERE, tell, values_of
from stand_in import error_of

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


def resumed(library: str) -> list[str]:
    """On a rank: what differs after a state was loaded that another number of steps has led to."""
    training = Training(library, 2, overlap_with_ddp=True, **FUSED)
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


def test_a_loaded_state_is_counted_from_where_it_was(world_of, stand_in):
    assert world_of(2, window_bytes=1 << 20).run(resumed, stand_in) == [[]] * 2


def by_torch(library: str, stage: int, overlap: bool, given: dict[str, Any]) -> list[str]:
    """On a rank: what differs from one process on the device, to the last bit unless torch's fused step runs."""
    training = Training(library, stage, overlap_with_ddp=overlap, **given)
    training.steps(0, 3)
    right = one_process(3, gpu=training.gpu, **given)
    said = training.optimizer.describe()
    return different(training.found(), right, exact="fused" not in given) + [said] * ("by torch" not in said)


@pytest.mark.parametrize(
    ("stage", "overlap", "given"),
    [
        *[(stage, False, given) for stage in (1, 2, 3) for given in (ADAMW, FUSED)],
        *[(stage, True, ADAMW) for stage in (2, 3)],
    ],
)
def test_torch_steps_where_nothing_else_was_asked_for(world_of, stand_in, stage, overlap, given):
    assert world_of(2, window_bytes=1 << 20).run(by_torch, stand_in, stage, overlap, given) == [[]] * 2


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
        ("SGD", {"lr": 0.1}, 2, 1 << 20, "SGD has no kernel there, only Adam and AdamW have"),
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
