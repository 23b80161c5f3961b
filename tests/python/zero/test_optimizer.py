"""ZeroOptimizer: the state of one process at every stage, over every backend, with every kind of optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import fresh, group_of, loss_of, mlp
from torch.nn.parallel import DistributedDataParallel as Stock
from zero_rig import ADAMW, differences, model, reference, same, steps, values, wrapped

KINDS = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("Adam", {"lr": 1e-2, "amsgrad": True}),
    ("AdamW", ADAMW),
    ("RMSprop", {"lr": 1e-3}),
    ("Adagrad", {"lr": 1e-2}),
    ("NAdam", {"lr": 1e-3}),
]


def optimizer_for(ddp: Any, kind: str = "AdamW", given: dict[str, Any] | None = None, **own: Any) -> ZeroOptimizer:
    return ZeroOptimizer(ddp.parameters(), getattr(torch.optim, kind), **own, **(ADAMW if given is None else given))


def trained(stage: int, backend: str, kind: str, given: dict[str, Any], **arguments: Any) -> list[str]:
    """On a rank: what is not as in one process after three steps."""
    ddp = wrapped(stage, backend, **arguments)
    optimizer = optimizer_for(ddp, kind, given)
    steps(ddp, optimizer, 3)
    return differences(ddp, optimizer, *reference(kind, 3, given))


@pytest.mark.parametrize("backend", ["ringdp", "gloo"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(("kind", "given"), KINDS, ids=str)
def test_state_is_that_of_one_process(trio, kind, given, stage, backend):
    assert trio.run(trained, stage, backend, kind, given) == [[]] * 3


@pytest.mark.parametrize(
    "arguments", [{"bucket_cap_mb": 25}, {"overlap": False}, {"gradient_as_bucket_view": True}], ids=str
)
@pytest.mark.parametrize("stage", [1, 2, 3])
@on_ranks(3, [])
def test_buckets_and_overlap_change_no_bit(stage: int, arguments: dict[str, Any]) -> list[str]:
    return trained(stage, "ringdp", "AdamW", ADAMW, **arguments)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks(world_of, ranks):
    for stage in (1, 2, 3):
        assert world_of(ranks).run(trained, stage, "ringdp", "AdamW", ADAMW) == [[]] * ranks


@on_ranks(3, [])
def test_over_torchs_wrapper_it_is_the_plain_optimizer() -> list[str]:
    """Torch's wrapper over gloo, whose gradients are divided first."""
    ddp = Stock(model(), process_group=group_of("gloo"))
    optimizer = optimizer_for(ddp, process_group=group_of("gloo"))
    alone = Stock(model(), process_group=group_of("gloo"))
    plain = torch.optim.AdamW(alone.parameters(), **ADAMW)
    steps(ddp, optimizer, 3)
    steps(alone, plain, 3)
    return differences(ddp, optimizer, alone.module, plain)


@on_ranks(3, [])
def test_no_wrapper_is_needed() -> list[str]:
    module, plain = model(), model()
    optimizer, alone = optimizer_for(module), torch.optim.AdamW(plain.parameters(), **ADAMW)
    for step in range(3):
        for net, stepper in ((module, optimizer), (plain, alone)):
            stepper.zero_grad()
            loss_of(net, 0, step, 0).backward()
            stepper.step()
    return differences(module, optimizer, plain, alone)


@pytest.mark.parametrize(("stage", "quiet"), [(1, True), (2, True), (2, False), (3, True), (3, False)])
@on_ranks(3, [])
def test_micro_batches_add_up(stage: int, quiet: bool) -> list[str]:
    """Two micro-batches per step, the first under no_sync or not."""
    ddp = wrapped(stage)
    optimizer = optimizer_for(ddp)
    for step in range(2):
        optimizer.zero_grad()
        for micro in range(2):
            if quiet and micro == 0:
                with ddp.no_sync():
                    loss_of(ddp, HERE.rank, step, micro).backward()
            else:
                loss_of(ddp, HERE.rank, step, micro).backward()
        optimizer.step()
    return differences(ddp, optimizer, *reference("AdamW", 2, ADAMW, accumulate=2, sync_each=not quiet))


@pytest.mark.parametrize("stage", [1, 2])
@on_ranks(3, [])
def test_weights_serve_at_every_stage(stage: int) -> list[str]:
    """Rank r has r + 1 samples, and the last has none."""
    ddp = wrapped(stage)
    optimizer = optimizer_for(ddp)
    last = HERE.rank == HERE.size - 1
    for step in range(2):
        optimizer.zero_grad()
        samples = HERE.rank + 1
        loss = None if last else loss_of(ddp, HERE.rank, step, 0, samples, "sum")
        ddp.backward(loss, weight=0 if last else samples)
        optimizer.step()
    plain = model()
    alone = torch.optim.AdamW(plain.parameters(), **ADAMW)

    def of_rank(net: Any, rank: int, step: int, micro: int) -> torch.Tensor:
        if rank == HERE.size - 1:
            return torch.zeros((), requires_grad=True) * 1.0  # no gradient for any parameter
        return loss_of(net, rank, step, micro, rank + 1, "sum")

    def samples_of(rank: int, step: int) -> float:
        return 0 if rank == HERE.size - 1 else rank + 1

    one_process(plain, alone, of_rank, ranks=HERE.size, steps=2, weights=samples_of)
    return differences(ddp, optimizer, plain, alone)


@on_ranks(3, [])
def test_schedulers_closures_and_groups() -> list[str]:
    """A scheduler, a closure, and a group that is added later."""
    results = []
    for stage in (0, 2, 3):
        ddp = wrapped(stage)
        first, *rest = ddp.parameters()
        make = torch.optim.AdamW if stage == 0 else ZeroOptimizer
        own = {} if stage == 0 else {"optimizer_class": torch.optim.AdamW}
        optimizer = make([first], **own, **ADAMW)
        optimizer.add_param_group({"params": rest, "lr": 1e-3})
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for step in range(3):

            def closure(ddp=ddp, optimizer=optimizer, step=step) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(ddp, HERE.rank, step, 0)
                loss.backward()
                return loss

            assert optimizer.step(closure) is not None
            schedule.step()
        results.append(values(ddp))
    return [str(i) for i, (a, *rest) in enumerate(zip(*results, strict=True)) if not all(same(a, b) for b in rest)]


@pytest.mark.parametrize(("stage", "overlap"), [(1, False), (2, False), (3, False), (2, True), (3, True)])
@on_ranks(3, [])
def test_an_optimizer_of_a_part_steps_that_part(stage: int, overlap: bool) -> list[str]:
    """An optimizer of some parameters, then of one more; the others stay as they are."""
    ddp, plain = wrapped(stage), model()
    last, *rest = [2, 1]
    parameters, others = list(ddp.parameters()), list(plain.parameters())
    overlaps = {"overlap_with_ddp": overlap} if overlap else {}
    optimizer = ZeroOptimizer([parameters[last]], torch.optim.AdamW, **overlaps, **ADAMW)
    alone = torch.optim.AdamW([others[last]], **ADAMW)
    steps(ddp, optimizer, 2)
    one_process(plain, alone, loss_of, ranks=HERE.size, steps=2)
    for number in rest:
        optimizer.add_param_group({"params": [parameters[number]]})
        alone.add_param_group({"params": [others[number]]})
    steps(ddp, optimizer, 2)
    one_process(plain, alone, loss_of, ranks=HERE.size, steps=2)
    return differences(ddp, optimizer, plain, alone)


def exploding(net: Any, rank: int, step: int, micro: int) -> torch.Tensor:
    """Infinities at the second step, that rank 0 and the others do not share, and NaN from then on."""
    return loss_of(net, rank, step, micro) * (float("-inf" if rank == 0 else "inf") if step == 1 else 1.0)


@pytest.mark.parametrize("stage", [1, 2, 3])
@on_ranks(3, [])
def test_a_run_that_diverges_has_the_bits_of_one_process(stage: int) -> list[str]:
    """What is not as in one process after a run that has met NaN."""
    ddp, plain = wrapped(stage), model()
    optimizer = optimizer_for(ddp)
    for step in range(3):
        optimizer.zero_grad()
        exploding(ddp, HERE.rank, step, 0).backward()
        optimizer.step()
    alone = torch.optim.AdamW(plain.parameters(), **ADAMW)
    one_process(plain, alone, exploding, ranks=HERE.size, steps=3)
    assert all(bool(p.isnan().any()) for p in plain.parameters())
    return differences(ddp, optimizer, plain, alone)


def _loss16(net: Any, rank: int, step: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(100 * rank + step)
    x = torch.randn(4, 12, generator=source).bfloat16()
    return torch.nn.functional.mse_loss(net(x), x[:, :3].tanh())


@pytest.mark.parametrize(
    ("stage", "grad_dtype"), [(1, None), (2, None), (2, torch.float32), (3, None), (3, torch.float32)]
)
@on_ranks(3, True)
def test_masters_keep_what_16_bits_cannot(stage: int, grad_dtype: torch.dtype | None) -> bool:
    """16-bit parameters with a float32 master, against the same by hand."""
    ddp = DistributedDataParallel(model(torch.bfloat16), zero_stage=stage, grad_dtype=grad_dtype, bucket_cap_mb=0.01)
    optimizer = optimizer_for(ddp, master_dtype=torch.float32)
    plain = model(torch.bfloat16)
    masters = [torch.nn.Parameter(p.detach().float()) for p in plain.parameters()]
    alone = torch.optim.AdamW(masters, **ADAMW)
    for step in range(3):
        optimizer.zero_grad()
        _loss16(ddp, HERE.rank, step).backward()
        optimizer.step()
        total = None
        for rank in range(HERE.size):
            plain.zero_grad()
            _loss16(plain, rank, step).backward()
            grads = [p.grad.float() for p in plain.parameters()]
            total = grads if total is None else [t + g for t, g in zip(total, grads, strict=True)]
        for master, t in zip(masters, total, strict=True):
            mean = t / HERE.size
            master.grad = mean if grad_dtype else mean.bfloat16().float()
        alone.step()
        for p, master in zip(plain.parameters(), masters, strict=True):
            p.data.copy_(master)
    return all(same(a, b) for a, b in zip(values(ddp), plain.parameters(), strict=True))


@on_ranks(3, error="has not been averaged")
def test_a_step_on_gradients_that_were_not_averaged_is_refused() -> None:
    ddp = wrapped(2)
    optimizer = optimizer_for(ddp)
    with ddp.no_sync():
        loss_of(ddp, HERE.rank, 0, 0).backward()
    optimizer.step()


@on_ranks(2, error="after wrapping")
def test_an_optimizer_that_is_older_than_the_wrapper_is_refused() -> None:
    module = model()
    optimizer = optimizer_for(module)
    ddp = DistributedDataParallel(module, zero_stage=2)
    loss_of(ddp, HERE.rank, 0, 0).backward()
    optimizer.step()


@on_ranks(4, True)
def test_ranks_are_more_than_blocks() -> bool:
    """On a rank that owns nothing at all, everything works as well."""
    ddp = DistributedDataParallel(fresh(lambda: mlp(2)), zero_stage=2)
    optimizer = optimizer_for(ddp)
    steps(ddp, optimizer, 2)
    flat = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    everyones = [torch.empty_like(flat) for _ in range(HERE.size)]
    dist.all_gather(everyones, flat)
    return all(same(flat, other) for other in everyones)
