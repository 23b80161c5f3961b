"""What a wrapper with a zero_stage offers, and refuses by name."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from ranks import HERE, error_of, on_ranks
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


@pytest.mark.parametrize(
    ("what", "says"),
    [("hook", "zero_stage=2 keeps shards"), ("join", "zero_stage=1"), ("optimizer", "AdamW cannot step parameters")],
)
@on_ranks(2)
def test_what_does_not_go_with_shards_is_named(what: str, says: str) -> None:
    ddp = wrapped(2 if what == "hook" else 1)
    with pytest.raises(Exception, match=says):
        if what == "hook":
            ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        elif what == "join":
            ddp.join()
        else:
            loss_of(ddp, HERE.rank, 0, 0).backward()
            torch.optim.AdamW(ddp.parameters()).step()


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


@on_ranks(2)
def test_what_belongs_to_stage_3_is_refused_elsewhere() -> None:
    refused = {
        lambda: wrapped(2).gathers(): "gathers",
        lambda: wrapped(1).gathered(): "gathered",
        lambda: wrapped(2, units=[torch.nn.Linear]): "units",
        lambda: wrapped(0, init=print): "init",
        lambda: wrapped(2, prefetch=False): "prefetch=False",
        lambda: wrapped(4): "zero_stage=4, must be 0, 1, 2 or 3",
    }
    for attempt, why in refused.items():
        assert why in error_of(attempt, kind=ValueError)


@on_ranks(2, error="First difference: rank 0: unit (model)")
def test_ranks_with_different_units_are_told() -> None:
    wrapped(3, units=[torch.nn.Linear] if HERE.rank else [])


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


@pytest.mark.parametrize("stage", [1, 2, 3])
@on_ranks(2)
def test_ignored_parameters_are_left_to_others(stage: int) -> None:
    """A ZeroOptimizer refuses them; their own optimizer steps them, and they are clipped."""
    ddp, extra = with_ignored(stage)
    with pytest.raises(ValueError, match="parameter extra is not averaged by the wrapper"):
        ZeroOptimizer(ddp.parameters(), torch.optim.SGD)
    own = torch.optim.SGD([extra], lr=1.0)
    extra.grad = torch.ones(3)
    own.step()
    assert (extra == 0).all()
    assert clip_grad_norm_([extra], 1e-3).item() == pytest.approx(3**0.5) and (extra.grad < 1e-3).all()


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


@on_ranks(2)
def test_the_group_stays_while_there_are_shards() -> None:
    for stage in (1, 2, 3):
        said = error_of(wrapped(stage)._update_process_group, torch.distributed.group.WORLD)
        assert f"_update_process_group: with zero_stage={stage}" in said
    wrapped(0)._update_process_group(torch.distributed.group.WORLD)


class Failing(torch.autograd.Function):
    """Its backward raises."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no backward")


@pytest.mark.parametrize(("stage", "overlap"), [(1, False), (2, False), (3, False), (2, True)])
@on_ranks(3)
def test_a_pass_that_failed_can_be_abandoned(stage: int, overlap: bool) -> None:
    ddp = wrapped(stage, bucket_cap_mb=0.001)
    overlaps = {"overlap_with_ddp": True} if overlap else {}
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **overlaps, **ADAMW)
    steps(ddp, optimizer, 1)
    optimizer.zero_grad()
    place = ddp.module[4 if overlap else 0]  # with overlap before the first bucket is stepped
    hook = place.register_forward_hook(lambda module, inputs, output: Failing.apply(output))
    failed, said = (error_of(lambda s=step: loss_of(ddp, HERE.rank, s, 0).backward()) for step in (1, 2))
    hook.remove()
    ddp.abandon_backward()
    steps(ddp, optimizer, 2, start=1)
    assert failed == "no backward"
    assert ("finished reduction" in said and "call ddp.abandon_backward()" in said) or overlap
    assert differences(ddp, optimizer, *reference("AdamW", 3, ADAMW)) == []
