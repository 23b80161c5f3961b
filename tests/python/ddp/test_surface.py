"""What else torch's class does: hooks, buffers, join, ignored and delayed parameters, checkpoints, the compiler."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import BACKENDS, HERE, group_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash
from small_models import batch, fresh, loss_of, mlp, optimizer_for
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as Stock
from torch.utils.checkpoint import checkpoint

HOOKS = ["allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "power_sgd", "builtin_allreduce", "builtin_fp16"]


def with_hook(cls: type, name: str, backend: str, bucket_cap_mb: float = 0.005) -> list[torch.Tensor]:
    ddp = cls(fresh(), process_group=group_of(backend), bucket_cap_mb=bucket_cap_mb)
    if name == "power_sgd":
        state = PowerSGDState(group_of(backend), matrix_approximation_rank=2, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook)
    elif name.startswith("builtin"):
        kinds = dist.BuiltinCommHookType
        ddp._register_builtin_comm_hook(kinds.ALLREDUCE if name.endswith("reduce") else kinds.FP16_COMPRESS)
    else:
        ddp.register_comm_hook(group_of(backend), getattr(default_hooks, name))
    for step in range(4):
        ddp.zero_grad()
        loss_of(ddp, HERE.rank, step, 0).backward()
    return [p.grad.clone() for p in ddp.parameters()]


def hooks_agree(name: str) -> tuple[float, list[float]]:
    """On a rank: the largest distance between gradients of ringdp's class and torch's with the same hook; ours."""
    # PowerSGD approximates whole buckets; over several of them torch's class lets threads race for the next collective.
    cap = 25 if name == "power_sgd" else 0.005
    ours = with_hook(DistributedDataParallel, name, "ringdp", cap)
    if name == "bf16_compress_hook":  # torch's class refuses it on CPU tensors
        theirs = with_hook(DistributedDataParallel, "allreduce_hook", "ringdp")
    else:
        theirs = with_hook(Stock, name, "ringdp", cap)
    distance = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    return distance, [float(g.sum()) for g in ours]


@pytest.mark.parametrize("name", HOOKS)
def test_stock_hooks_run_unchanged(pair, name):
    limit = 2e-2 if name == "bf16_compress_hook" else 1e-3
    (distance, first), (_, second) = pair.run(hooks_agree, name)
    assert distance <= limit and first == second


def hook_with_collectives_of_its_own() -> list[float]:
    return [float(g.sum()) for g in with_hook(DistributedDataParallel, "power_sgd", "ringdp")]


def test_collectives_in_callbacks_come_in_one_order_on_all_ranks(trio):
    for _ in range(5):
        first, second, third = trio.run(hook_with_collectives_of_its_own)
        assert first == second == third


class WithBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(12, 6), nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x))


def buffers(sync: bool) -> list[float]:
    """On a rank: running means after two steps."""
    ddp = DistributedDataParallel(fresh(WithBuffer), forward_sync_buffers=sync)
    for step in range(2):
        ddp(batch(HERE.rank, step)[0]).sum().backward()
    ddp.eval()
    ddp.require_forward_param_sync = sync
    ddp(batch(0, 0)[0])
    return ddp.module.norm.running_mean.tolist()


def test_buffers_are_those_of_rank_zero_or_ones_own(trio):
    shared, own = trio.run(buffers, True), trio.run(buffers, False)
    assert shared[0] == shared[1] == shared[2]
    assert len({tuple(values) for values in own}) == 3


def joined(backend: str, by_initial: bool) -> list[str]:
    """On a rank: rank r has r + 1 inputs; hash of the parameters here, and of one process with what was there."""
    ddp = DistributedDataParallel(fresh(), process_group=group_of(backend), bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with ddp.join(divide_by_initial_world_size=by_initial):
        for step in range(HERE.rank + 1):
            optimizer.zero_grad()
            loss_of(ddp, HERE.rank, step, 0).backward()
            optimizer.step()
    model = fresh()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(HERE.size):
        _one_joint_step(model, optimizer, step, by_initial)
    return [parameters_hash(ddp), parameters_hash(model)]


def _one_joint_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, by_initial: bool) -> None:
    """In one process: ranks from `step` on still have inputs; the divisor is theirs or everybody's number."""
    live = HERE.size - step
    divisor = HERE.size if by_initial else live

    def of_live(model: nn.Module, rank: int, _step: int, _micro: int) -> torch.Tensor:
        return loss_of(model, rank + step, step, 0)

    one_process(model, optimizer, of_live, ranks=live, steps=1, weights=lambda rank, _: divisor if rank == 0 else 0)


@pytest.mark.parametrize("by_initial", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_may_run_out_of_inputs(trio, backend, by_initial):
    outcomes = trio.run(joined, backend, by_initial)
    assert len({ours for ours, _ in outcomes}) == 1
    assert all(ours == theirs for ours, theirs in outcomes)


@pytest.mark.parametrize("static", [False, True])
@on_ranks(3, True)
def test_a_rank_may_have_no_input_at_all(static: bool) -> bool:
    """Rank 2 never has an input; the others' mean is over two ranks."""
    ddp = DistributedDataParallel(nn.Linear(12, 3), static_graph=static)
    right = []
    with ddp.join(divide_by_initial_world_size=False):
        for step in range(0 if HERE.rank == 2 else 4):
            ddp.zero_grad()
            ddp(torch.full((1, 12), float(HERE.rank + step))).sum().backward()
            right.append(ddp.module.weight.grad[0, 0].item() == step + 0.5)
    return all(right)


def ignored_at_the_top() -> list[float]:
    """On a rank: the outermost module's own parameter, by the name that it has there."""
    model = nn.Linear(2, 2)
    Stock._set_params_and_buffers_to_ignore_for_model(model, ["bias"])
    ddp = DistributedDataParallel(model)
    (ddp(torch.ones(1, 2)) * HERE.rank).sum().backward()
    return [model.bias.grad[0].item(), model.weight.grad[0, 0].item()]


def test_the_outermost_modules_parameters_can_be_ignored(trio):
    assert trio.run(ignored_at_the_top) == [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]


@on_ranks(3, (True, True))
def test_ignored_and_delayed_parameters() -> tuple[bool, bool]:
    """An ignored parameter's gradient stays local; a delayed one's is the mean."""
    model = fresh()
    Stock._set_params_and_buffers_to_ignore_for_model(model, ["0.bias"])
    delayed = [("4.weight", model[4].weight)]
    ddp = DistributedDataParallel(
        model, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=model[0].weight
    )
    loss_of(ddp, HERE.rank, 0, 0).backward()
    alone = fresh()
    loss_of(alone, HERE.rank, 0, 0).backward()
    mean = fresh()
    one_process(mean, torch.optim.SGD(mean.parameters(), lr=0.0), loss_of, ranks=HERE.size, steps=1)
    return torch.equal(model[0].bias.grad, alone[0].bias.grad), torch.equal(model[4].weight.grad, mean[4].weight.grad)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.net, self.reentrant = mlp(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.net[:2], x.requires_grad_(), use_reentrant=self.reentrant)
        return self.net[4](checkpoint(self.net[2:4], hidden, use_reentrant=self.reentrant))


@pytest.mark.parametrize(("reentrant", "static"), [(False, False), (False, True), (True, False), (True, True)])
@on_ranks(3, True)
def test_activation_checkpoints(reentrant: bool, static: bool) -> bool:
    """Recomputed activations give the bits of one process without them."""
    model = fresh(lambda: Checkpointed(reentrant))
    ddp = DistributedDataParallel(model, static_graph=static, bucket_cap_mb=0.005)
    optimizer = optimizer_for(ddp)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(ddp, HERE.rank, step, 0).backward()
        optimizer.step()
    plain = fresh()
    one_process(plain, optimizer_for(plain), loss_of, ranks=HERE.size, steps=3)
    return parameters_hash(model.net) == parameters_hash(plain)


@on_ranks(2)
def test_compiled_wrappers() -> None:
    """Torch.compile over the wrapper, split at buckets; distance from the uncompiled mean."""

    def wide() -> nn.Module:
        return mlp(600)  # torch's compiler wants bucket_cap_mb >= 1

    ddp = DistributedDataParallel(fresh(wide), bucket_cap_mb=1)
    model = torch.compile(ddp, backend="aot_eager")
    loss_of(model, HERE.rank, 0, 0).backward()
    mean = fresh(wide)
    one_process(mean, torch.optim.SGD(mean.parameters(), lr=0.0), loss_of, ranks=HERE.size, steps=1)
    pairs = zip(ddp.module.parameters(), mean.parameters(), strict=True)
    assert all((a.grad - b.grad).abs().max() < 1e-6 for a, b in pairs) and len(ddp.explain().buckets) > 1


@on_ranks(2, True)
def test_create_graph_is_allowed_and_warned_about() -> bool:
    ddp = DistributedDataParallel(nn.Linear(2, 1, bias=False))
    ddp(torch.full((1, 2), float(HERE.rank))).pow(2).sum().backward(create_graph=True)
    return ddp.module.weight.grad is not None


@on_ranks(2, error=("ValueError", "GPU modules"))
def test_sync_batch_norm_wants_accelerators_as_in_torch() -> None:
    DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(WithBuffer()))
