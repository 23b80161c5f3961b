"""What a wrapper with a zero_stage offers, and refuses by name."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from ranks import HERE, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.clip import clip_grad_norm_
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import loss_of
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as Stock
from zero_rig import ADAMW, differences, model, reference, same, steps, wrapped


@pytest.mark.parametrize("stage", [1, 2, 3])
@on_ranks(3, (True, True))
def test_full_state_is_a_copy(stage: int) -> tuple[bool, bool]:
    """Whether the state is the model's, and stays when the model is trained on."""
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    steps(ddp, optimizer, 1)
    full = ddp.full_state_dict()
    with ddp.gathered() if stage == 3 else nullcontext():
        now = {name: value.clone() for name, value in ddp.module.state_dict().items()}
    steps(ddp, optimizer, 1, start=1)
    return full.keys() == now.keys(), all(same(full[name], now[name]) for name in now)


def refused(what: str) -> None:
    ddp = wrapped(2 if what == "hook" else 1)
    if what == "hook":
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    elif what == "join":
        ddp.join()
    else:
        loss_of(ddp, HERE.rank, 0, 0).backward()
        torch.optim.AdamW(ddp.parameters()).step()


@pytest.mark.parametrize(
    ("what", "says"),
    [("hook", "zero_stage=2 keeps shards"), ("join", "zero_stage=1"), ("optimizer", "AdamW cannot step parameters")],
)
def test_what_does_not_go_with_shards_is_named(pair, what, says):
    for outcome in pair.attempt(refused, what):
        assert says in outcome.error


@on_ranks(3, True)
def test_no_gradient_is_left_whole() -> bool:
    """After a backward pass at stage 2 no .grad has memory."""
    ddp = wrapped(2)
    loss_of(ddp, HERE.rank, 0, 0).backward()
    held = ddp.memory()
    return 0 < held.gradients + held.padding < sum(p.nbytes for p in ddp.parameters())


@on_ranks(2, (True, 2))
def test_buckets_are_counted_with_their_padding() -> tuple[bool, int]:
    ddp = wrapped(2)
    layout = ddp.shard_layout()
    padded = [layout.padded(bucket) * 4 for bucket in range(len(layout.buckets))]
    return ddp.bucket_bytes() == padded, ddp.zero_stage


def of_another_stage() -> list[str]:
    """On a rank: what belongs to stage 3."""
    said = []
    attempts = [
        lambda: wrapped(2).gathers(),
        lambda: wrapped(1).gathered(),
        lambda: wrapped(2, units=[torch.nn.Linear]),
        lambda: wrapped(0, init=print),
        lambda: wrapped(2, prefetch=False),
        lambda: wrapped(4),
    ]
    for attempt in attempts:
        try:
            attempt()
        except ValueError as error:
            said.append(str(error))
    return said


def test_what_belongs_to_stage_3_is_refused_elsewhere(pair):
    wanted = ["gathers", "gathered", "units", "init", "prefetch=False", "zero_stage=4, must be 0, 1, 2 or 3"]
    for said in pair.run(of_another_stage):
        for text, word in zip(said, wanted, strict=True):
            assert word in text


def differing_units() -> None:
    wrapped(3, units=[torch.nn.Linear] if HERE.rank else [])


def test_ranks_with_different_units_are_told(pair):
    for outcome in pair.attempt(differing_units):
        assert "First difference: rank 0: unit (model)" in outcome.error


def on_one_rank_too() -> dict[str, int]:
    """On a rank: what a sharded model takes without an optimizer."""
    return vars(wrapped(3).memory())


def test_memory_needs_no_optimizer(pair):
    first, second = pair.run(on_one_rank_too)
    weights = sum(p.nbytes for p in model().parameters())
    assert first["parameters"] + second["parameters"] == weights
    assert 0 < first["gathered"] <= weights + first["padding"] + second["padding"]


def with_ignored(stage: int) -> tuple[DistributedDataParallel, torch.nn.Parameter]:
    module = model()
    module.extra = torch.nn.Parameter(torch.ones(3))
    Stock._set_params_and_buffers_to_ignore_for_model(module, ["extra"])
    return DistributedDataParallel(module, zero_stage=stage), module.extra


def ignored(stage: int) -> tuple[str, bool, bool]:
    """On a rank: a ZeroOptimizer's word on ignored parameters; whether their own steps; whether they are clipped."""
    ddp, extra = with_ignored(stage)
    said = ""
    try:
        ZeroOptimizer(ddp.parameters(), torch.optim.SGD)
    except ValueError as error:
        said = str(error)
    own = torch.optim.SGD([extra], lr=1.0)
    extra.grad = torch.ones(3)
    own.step()
    norm = clip_grad_norm_([extra], 1e-3)
    return said, bool((extra == 0).all()), norm.item() == pytest.approx(3**0.5) and bool((extra.grad < 1e-3).all())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ignored_parameters_are_left_to_others(pair, stage):
    for said, stepped, clipped in pair.run(ignored, stage):
        assert "parameter extra is not averaged by the wrapper" in said and stepped and clipped


@on_ranks(2, 1)
def test_delayed_parameters_are_stepped() -> int:
    """Parameters that torch averages later than others are averaged, and so stepped."""
    module = model()
    ddp = DistributedDataParallel(
        module,
        zero_stage=1,
        delay_all_reduce_named_params=[("0.bias", module[0].bias)],
        param_to_hook_all_reduce=module[0].weight,
    )
    return ZeroOptimizer(ddp.parameters(), torch.optim.SGD).stage


def of_another_group() -> list[str]:
    said = []
    for stage in (1, 2, 3):
        try:
            wrapped(stage)._update_process_group(torch.distributed.group.WORLD)
        except NotImplementedError as error:
            said.append(str(error))
    wrapped(0)._update_process_group(torch.distributed.group.WORLD)
    return said


def test_the_group_stays_while_there_are_shards(pair):
    for said in pair.run(of_another_group):
        assert [f"_update_process_group: with zero_stage={stage}" in s for stage, s in enumerate(said, 1)] == [True] * 3


class Failing(torch.autograd.Function):
    """Its backward raises."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no backward")


def abandoned(stage: int, overlap: bool) -> tuple[str, list[str]]:
    """On a rank: what the next pass says after one that failed halfway; and when it was abandoned, what differs."""
    ddp = wrapped(stage, bucket_cap_mb=0.001)
    overlaps = {"overlap_with_ddp": True} if overlap else {}
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **overlaps, **ADAMW)
    steps(ddp, optimizer, 1)
    optimizer.zero_grad()
    place = ddp.module[4 if overlap else 0]  # with overlap before the first bucket is stepped
    hook = place.register_forward_hook(lambda module, inputs, output: Failing.apply(output))
    said = []
    for step in (1, 2):
        try:
            loss_of(ddp, HERE.rank, step, 0).backward()
        except RuntimeError as error:
            said.append(str(error))
    hook.remove()
    ddp.abandon_backward()
    steps(ddp, optimizer, 2, start=1)
    assert said[0] == "no backward"
    return said[1], differences(ddp, optimizer, *reference("AdamW", 3, ADAMW))


@pytest.mark.parametrize(("stage", "overlap"), [(1, False), (2, False), (3, False), (2, True)])
def test_a_pass_that_failed_can_be_abandoned(trio, stage, overlap):
    for said, wrong in trio.run(abandoned, stage, overlap):
        assert ("finished reduction" in said and "call ddp.abandon_backward()" in said) or overlap
        assert wrong == []
