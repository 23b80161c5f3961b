"""Steps inside the backward pass: the bits of one process, no shards kept; a pass that dies leaves the state torn."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.distributed as dist
from ranks import BACKENDS, HERE, error_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.clip import clip_grad_norm_
from ringdp.zero.optimizer import ZeroOptimizer
from ringdp.zero.scaler import GradScaler
from small_models import batch, loss_of
from torch.utils.checkpoint import checkpoint
from zero_rig import ADAMW, differences, model, reference, steps, wrapped


def one_pass(ddp, **given):
    return ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, overlap_with_ddp=True, **{**ADAMW, **given})


def trained(backend: str, accumulate: int, kind: str, given: dict, stage: int = 2) -> list[str]:
    """On a rank: what differs from one process."""
    ddp = wrapped(stage, backend)
    optimizer = ZeroOptimizer(ddp.parameters(), getattr(torch.optim, kind), overlap_with_ddp=True, **given)
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(accumulate - 1):
            with ddp.no_sync():
                (loss_of(ddp, HERE.rank, step, micro)).backward()
        (loss_of(ddp, HERE.rank, step, accumulate - 1)).backward()
        assert all(shard is None for shard in ddp.reducer.shards())
        optimizer.step()
    assert len(ddp.reducer.layout()) >= 2
    return differences(ddp, optimizer, *reference(kind, 3, given, accumulate=accumulate))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("stage", [2, 3])
def test_bits_of_one_process(trio, backend, accumulate, stage):
    assert trio.run(trained, backend, accumulate, "AdamW", ADAMW, stage) == [[]] * 3


def test_one_rank_has_nobody_to_tell(world_of):
    assert world_of(1).run(trained, "ringdp", 1, "AdamW", ADAMW) == [[]]


def test_an_optimizer_that_torch_steps(pair):
    assert pair.run(trained, "ringdp", 1, "Adagrad", {"lr": 0.05}) == [[]] * 2


class Checkpointed(torch.nn.Module):
    """Computes its body again in the backward pass."""

    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


def step_of(kind: str, ddp: DistributedDataParallel, optimizer: ZeroOptimizer, step: int) -> None:
    optimizer.zero_grad()
    x, y = batch(HERE.rank, step)
    samples = x.shape[0] - HERE.rank if kind == "weights" else x.shape[0]
    given = ddp(x[:samples].to(next(ddp.parameters()).dtype)).float()
    loss = torch.nn.functional.mse_loss(given, y[:samples], reduction="sum")
    ddp.backward(loss, weight=samples) if kind == "weights" else loss.backward()
    optimizer.step()


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("kind", ["schedules", "weights", "masters", "checkpoints"])
@on_ranks(3, [])
def test_the_bits_are_those_without_overlap(kind: str, stage: int) -> list[str]:
    """What differs from the same without overlap."""
    found = []
    bf16 = {"master_dtype": torch.float32} if kind == "masters" else {}
    for overlap in (True, False):
        body = model(torch.bfloat16 if bf16 else torch.float32)
        module = torch.nn.Sequential(*map(Checkpointed, body)) if kind == "checkpoints" else body
        ddp = DistributedDataParallel(module, zero_stage=stage)
        optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, overlap_with_ddp=overlap, **ADAMW, **bf16)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5 if kind == "schedules" else 1.0)
        for step in range(3):
            step_of(kind, ddp, optimizer, step)
            schedule.step()
        found.append(ddp.full_state_dict())
    return [name for name in found[0] if not torch.equal(found[0][name], found[1][name])]


@on_ranks(2)
def test_refusals_say_why() -> None:
    """To those who want gradients, to a second pass, and to a wrapper that cannot."""
    ddp = wrapped(2)
    optimizer = one_pass(ddp)
    scaler = GradScaler("cpu")
    scaler.scale(torch.ones(()))
    loss_of(ddp, HERE.rank, 0, 0).backward()
    refused = {
        lambda: clip_grad_norm_(ddp.parameters(), 1.0): "clip_grad_norm_ needs",
        optimizer.shard_grads: "shard_grads() needs",
        lambda: scaler.unscale_(optimizer): "needs",
        optimizer.consolidate_state_dict: "step() has not been called since",
        lambda: loss_of(ddp, HERE.rank, 1, 0).backward(): "step() has not been called since",
        lambda: one_pass(wrapped(1)): "at stage 1",
        lambda: one_pass(wrapped(2, find_unused_parameters=True)): "find_unused_parameters or static_graph",
    }
    for call, why in refused.items():
        assert why in error_of(call, kind=(RuntimeError, ValueError))


@on_ranks(2)
def test_a_pass_that_dies_leaves_the_state_torn_until_one_is_loaded() -> None:
    ddp = wrapped(2, bucket_cap_mb=0.001)  # so small that several are stepped before the pass dies
    optimizer = one_pass(ddp)
    steps(ddp, optimizer, 1)
    optimizer.consolidate_state_dict()
    saved = [None if HERE.rank else optimizer.state_dict()]
    torch.distributed.broadcast_object_list(saved)
    values = {name: value.clone() for name, value in ddp.module.state_dict().items()}

    class Death(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("died here")

    first = ddp.module[0]
    hook = first.register_forward_hook(lambda module, inputs, output: Death.apply(output))
    optimizer.zero_grad()
    assert "died here" in error_of(lambda: loss_of(ddp, HERE.rank, 1, 0).backward())
    step, consolidation = error_of(optimizer.step), error_of(optimizer.consolidate_state_dict)
    assert "torn" in step and "torn" in consolidation and "Load a checkpoint" in step
    hook.remove()
    ddp.module.load_state_dict(values)
    optimizer.load_state_dict(saved[0])
    steps(ddp, optimizer, 2, start=1)
    assert differences(ddp, optimizer, *reference("AdamW", 3, ADAMW)) == []


@pytest.mark.parametrize("stage", [2, 3])
@on_ranks(2)
def test_what_would_add_up_or_step_twice_is_refused(stage: int) -> None:
    """Passes and steps that would find gradients in .grad in one process."""
    ddp = wrapped(stage)
    optimizer = one_pass(ddp)

    def quiet_pass() -> None:
        with ddp.no_sync():
            loss_of(ddp, HERE.rank, 1, 0).backward()

    loss_of(ddp, HERE.rank, 0, 0).backward()
    said = error_of(lambda: ddp.eval()(batch(HERE.rank, 0)[0]))  # which would read stepped parameters
    assert "step() has not been called since" in said and "step() has not been called since" in error_of(quiet_pass)
    ddp.module[2].bias.grad = None
    assert "which has stepped them already" in error_of(optimizer.step)
    optimizer.zero_grad()
    assert "which has stepped them already" in error_of(optimizer.step)
    optimizer.load_state_dict(torch.optim.AdamW(model().parameters(), **ADAMW).state_dict())
    loss_of(ddp, HERE.rank, 0, 0).backward()
    optimizer.step()
    assert "a second step() with the gradients of the last pass" in error_of(optimizer.step)
    for next_pass in (lambda: loss_of(ddp, HERE.rank, 1, 0), quiet_pass):
        assert "call zero_grad() after each step()" in error_of(next_pass)
    for zeroed in (optimizer, ddp):
        assert "zero_grad(set_to_none=False) needs" in error_of(lambda z=zeroed: z.zero_grad(set_to_none=False))
    optimizer.zero_grad()
    optimizer.step()
    loss_of(ddp, HERE.rank, 1, 0).backward()
    optimizer.step()


class Early(torch.nn.Module):
    """Reads a weight without a gradient first, and trains it later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(12, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.linear(self.first(x), self.last.weight.detach())
        return self.last(x)[:, :3]


@on_ranks(2, error="modified by an inplace operation")
def test_stepped_values_are_not_used_by_the_rest_of_the_pass() -> None:
    """What autograd says of a node that needs values that have been stepped."""
    ddp = DistributedDataParallel(Early(), zero_stage=2, bucket_cap_mb=0.001)
    optimizer = one_pass(ddp)
    steps(ddp, optimizer, 1)


@on_ranks(2, (True, True, ["SGD"]))
def test_an_optimizer_that_is_dropped_leaves_nothing_behind() -> tuple[bool, bool, list[str]]:
    """Module pickled and copied; shards kept again after the optimizer is gone; another one's bits."""
    ddp = wrapped(2)
    optimizer = one_pass(ddp)
    steps(ddp, optimizer, 1)
    copy = pickle.loads(pickle.dumps(ddp.module))
    copy.load_state_dict(ddp.module.state_dict())
    copied = all(torch.equal(a, b) for a, b in zip(copy.parameters(), ddp.module.parameters(), strict=True))
    del optimizer
    another = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.0)
    loss_of(ddp, HERE.rank, 1, 0).backward()
    return copied, all(shard is not None for shard in ddp.reducer.shards()), [type(another.optim).__name__]


@on_ranks(2)
def test_a_step_after_an_unfinished_pass_is_refused() -> None:
    """After a pass in which a parameter had no gradient, with overlap and without."""
    for overlap in (False, True):
        ddp = DistributedDataParallel(Early(), zero_stage=2)
        optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, overlap_with_ddp=overlap, **ADAMW)
        ddp(torch.ones(2, 12))
        ddp.module.last.weight.sum().backward()
        assert "finished reduction" in error_of(optimizer.step)


@on_ranks(2)
def test_a_rate_that_comes_after_the_backward_pass_is_named() -> None:
    """The pass has stepped with the one before. It may change after step(), and back."""
    ddp = wrapped(2)
    optimizer = one_pass(ddp)
    group = optimizer.param_groups[0]
    for step, rate in enumerate((1e-2, 2e-2)):
        group["lr"] = rate
        optimizer.zero_grad()
        loss_of(ddp, HERE.rank, step, 0).backward()
        group["lr"] = 3e-2
        assert f"lr of param group 0 is 0.03, and was {rate} when the backward pass began" in error_of(optimizer.step)
        group["lr"] = rate
        optimizer.step()
        assert optimizer.optim.param_groups[0]["lr"] == group["lr"] == rate


@on_ranks(2, "")
def test_a_load_forgets_the_rate_of_a_pass_that_failed() -> str:
    """What was loaded has another rate, and training goes on."""
    ddp = wrapped(2)
    optimizer = one_pass(ddp, lr=1e-2)
    optimizer.consolidate_state_dict()
    saved = [optimizer.state_dict() if HERE.rank == 0 else None]
    dist.broadcast_object_list(saved)
    optimizer.param_groups[0]["lr"] = 2e-2
    loss_of(ddp, HERE.rank, 0, 0).backward()
    optimizer.load_state_dict(saved[0])
    optimizer.zero_grad()
    loss_of(ddp, HERE.rank, 1, 0).backward()
    return error_of(optimizer.step)
