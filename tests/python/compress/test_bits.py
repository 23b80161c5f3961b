"""DistributedDataParallel(compress=...): the bits of one process that plays the ranks; what is refused; the ledger."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import ringdp
import torch
import torch.distributed as dist
from compress_runs import Model, loss_of, made
from ranks import HERE, error_of, group_of, on_ranks
from ringdp.compress.means import norm
from ringdp.compress.methods import Codes, PowerSGD, TopK, method_of
from ringdp.compress.played import PlayedRanks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 6
METHODS: list[Any] = [
    "int8",
    "fp8",
    "sign",
    Codes("sign", feedback=False),
    TopK(0.05),
    PowerSGD(1),
    PowerSGD(3, start=2, seed=5),
    PowerSGD(2, feedback=False),
]


def in_one_process(ranks: int, method: Any, dtype: str, accumulate: int = 1) -> str:
    model, optimizer = made(dtype)
    one_process(model, optimizer, loss_of, ranks=ranks, steps=STEPS, accumulate=accumulate, compress=method)
    return parameters_hash(model)


def trained(method: Any, dtype: str, backend: str, cap_mb: float | None, stage: int, accumulate: int) -> str:
    """On a rank."""
    model, optimizer = made(dtype)
    given = {} if cap_mb is None else {"bucket_cap_mb": cap_mb}
    ddp = DistributedDataParallel(model, process_group=group_of(backend), compress=method, zero_stage=stage, **given)
    if stage:
        optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(STEPS):
        for micro in range(accumulate - 1):
            with ddp.no_sync():
                loss_of(ddp, HERE.rank, step, micro).backward()
        loss_of(ddp, HERE.rank, step, accumulate - 1).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters_hash(model)


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_bits_are_those_of_a_process_that_plays_the_ranks(world_of, method, ranks):
    want = in_one_process(ranks, method, "float32")
    for cap_mb in (None, 0.004):
        assert world_of(ranks).run(trained, method, "float32", "ringdp", cap_mb, 0, 1) == [want] * ranks


@pytest.mark.parametrize("method", ["int8", TopK(0.05), PowerSGD(2)], ids=repr)
@pytest.mark.parametrize(
    ("dtype", "backend", "stage", "accumulate"),
    [
        ("bfloat16", "ringdp", 0, 1),
        ("float32", "gloo", 0, 1),
        ("float32", "ringdp", 1, 1),
        ("float32", "ringdp", 0, 3),
        ("bfloat16", "ringdp", 2, 3),
        ("float32", "gloo", 2, 1),
    ],
)
def test_also_in_16_bits_over_gloo_with_shards_and_with_accumulation(
    world_of, method, dtype, backend, stage, accumulate
):
    want = in_one_process(3, method, dtype, accumulate)
    assert world_of(3).run(trained, method, dtype, backend, None, stage, accumulate) == [want] * 3


def test_feedback_changes_bits():
    hashes = {in_one_process(2, method, "float32") for method in (Codes("sign"), Codes("sign", feedback=False), None)}
    assert len(hashes) == 3


def ledger_of(method: Any) -> tuple[list[tuple[int, int]], int, int, int, str]:
    """On a rank: bytes by bucket; the total; steps; what is printed."""
    model, optimizer = made("float32")
    ddp = DistributedDataParallel(model, compress=method, bucket_cap_mb=0.004)
    loss_of(ddp, HERE.rank, 0, 0).backward()
    optimizer.step()
    found = ddp.ledger()
    return [(b.bytes_whole, b.bytes_sent) for b in found.buckets], found.bytes_sent, found.steps, str(found)


@pytest.mark.parametrize("method", ["int8", "sign", TopK(0.05), PowerSGD(1)], ids=repr)
def test_the_ledger_counts_bytes_by_the_formula(world_of, method):
    counts = [p.numel() for p in reversed(list(Model().parameters()))]
    for buckets, sent, steps, printed in world_of(2).run(ledger_of, method):
        assert steps == 1 and sent == sum(bytes_sent for _, bytes_sent in buckets)
        assert sum(whole for whole, _ in buckets) == pytest.approx(4 * sum(counts), rel=0.01)
        assert f"{sent / sum(whole for whole, _ in buckets):.4f}" in printed
        if not isinstance(method, PowerSGD):
            codecs = method_of(method).codecs(2)
            blocks = sum(-(-n // codecs.block) for n in counts)
            per_block = codecs.contributions.block_bytes + codecs.means.block_bytes
            assert blocks / 2 * per_block <= sent <= (blocks / 2 + len(buckets)) * per_block


def norms_of(method: Any, stage: int) -> list[tuple[int, float, float, float, float]]:
    """On a rank, after 2 and 17 steps: the step, what was meant, the error, the mean and the residuals, of all."""
    model, _ = made("float32")
    ddp = DistributedDataParallel(model, compress=method, bucket_cap_mb=0.004, zero_stage=stage)
    found = []
    for step in range(17):
        loss_of(ddp, HERE.rank, step, 0).backward()
        ddp.zero_grad()
        if step in (1, 16):
            every = [entry.norms for entry in ddp.ledger().buckets]
            rows = [(n.meant, n.error, n.mean, n.residual) for n in every]
            found.append((every[0].step, *(math.hypot(*column) for column in zip(*rows, strict=True))))
            assert f"{found[-1][2] / found[-1][1]:.4f}" in str(ddp.ledger()).splitlines()[-3]
    return found


@pytest.mark.parametrize("stage", [0, 2])
@pytest.mark.parametrize("method", ["int8", "sign", TopK(0.05), PowerSGD(2)], ids=repr)
def test_the_ledger_says_how_much_codes_leave_out(world_of, method, stage):
    model, optimizer = made("float32")
    played, want = PlayedRanks(method_of(method), 2, model, optimizer), []
    for step in range(17):
        by_rank = []
        for rank in range(2):
            model.zero_grad()
            loss_of(model, rank, step, 0).backward()
            by_rank.append({name: p.grad for name, p in model.named_parameters()})
        before = [dict(residuals) for residuals in played.residuals]
        mean = norm(played.mean(by_rank).values())
        if step in (0, 16):
            rows = []
            for gradients, residuals, left in zip(by_rank, before, played.residuals, strict=False):
                meant = (g.flatten() + residuals.get(name, torch.zeros(1)).flatten() for name, g in gradients.items())
                rows.append((step, norm(meant), norm(left.values()), mean, norm(left.values())))
            want.append(rows)
    for moment, of_ranks in enumerate(zip(*world_of(2).run(norms_of, method, stage), strict=True)):
        for found, wanted in zip(of_ranks, want[moment], strict=True):
            known = 5 if stage == 0 else 3
            assert found[:known] == pytest.approx(wanted[:known], rel=1e-5)
        if stage == 2 and not isinstance(method, PowerSGD):
            assert math.hypot(*(found[3] for found in of_ranks)) == pytest.approx(want[moment][0][3], rel=1e-5)


def test_also_without_feedback(world_of):
    for method in ("sign", PowerSGD(2)):
        without = dataclasses.replace(method_of(method), feedback=False)
        (with_it, _), (alone, later) = (world_of(1).run(norms_of, m, 0)[0] for m in (method, without))
        assert alone[:4] == with_it[:4] and alone[4] == later[4] == 0.0 < later[2] < later[1]


def on_the_wire(method: Any) -> tuple[int, int]:
    """On a rank: bytes of a step by the ledger, and by the counters of its links."""
    torch.manual_seed(3)
    ddp = DistributedDataParallel(nn.Linear(300, 300), compress=method)
    backend = ddp._compression.group._get_backend(torch.device("cpu"))
    for _ in range(2):
        before = backend.counters()["wire_bytes_sent"]
        ddp(torch.ones(1, 300)).sum().backward()
    return ddp.ledger().bytes_sent, backend.counters()["wire_bytes_sent"] - before


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_links_carry_what_the_ledger_says(world_of, method):
    for said, counted in world_of(2, transport="tcp").run(on_the_wire, method):
        assert said <= counted <= 1.01 * said + 2000  # headers


@on_ranks(2)
def test_what_does_not_go_with_it_is_refused_by_name() -> None:
    refused = {
        "zero_stage=3": {"zero_stage": 3},
        "micro_batches=4": {"micro_batches": 4},
        "order='rotated'": {"order": "rotated"},
        "check_drift=True": {"check_drift": True},
        "overlap=False": {"overlap": False},
        "find_unused_parameters=True": {"find_unused_parameters": True},
    }
    for words, arguments in refused.items():
        said = error_of(lambda given=arguments: DistributedDataParallel(Model(), compress="int8", **given))
        assert words in said and "Codes(kind='int8'" in said, said
    sparse = nn.Sequential(nn.Embedding(4, 4, sparse=True))
    assert "layer 0 has sparse" in error_of(lambda: DistributedDataParallel(sparse, compress="int8"))
    for dtype in (torch.complex64, torch.float64):
        other = nn.Linear(2, 2).to(dtype)
        said = error_of(lambda module=other: DistributedDataParallel(module, compress="int8"))
        assert f"parameter weight is {dtype}" in said
    ddp = DistributedDataParallel(Model(), compress="int8")
    assert "a communication hook" in error_of(lambda: ddp.register_comm_hook(None, lambda *_: None))
    assert "join()" in error_of(ddp.join)
    assert "another group" in error_of(ddp._update_process_group, dist.group.WORLD)
    assert "a copy" in error_of(copy.deepcopy, ddp)
    assert "abandon_backward()" in error_of(ddp.abandon_backward)
    assert "backward(weight=...)" in error_of(lambda: ddp.backward(torch.ones(()), weight=2))
    assert "it is for compress" in error_of(DistributedDataParallel(Model()).ledger, kind=ValueError)


def test_values_that_are_none_are_refused_by_name():
    for wrong, words in (("int9", "'int8', 'fp8', 'sign'"), (7, "compress=7")):
        assert words in error_of(method_of, wrong, kind=(ValueError, TypeError))
    assert "rank=0" in error_of(PowerSGD, 0, kind=ValueError)
    for keep in (0, "x", True):
        assert f"TopK: keep={keep!r}" in error_of(TopK, keep, kind=ValueError)
    for method, first in ((TopK, 0.1), (PowerSGD, 1), (Codes, "int8")):
        assert "feedback='no'" in error_of(lambda kind=method, of=first: kind(of, feedback="no"), kind=ValueError)
    model, optimizer = made("float32")
    said = error_of(
        lambda: one_process(model, optimizer, loss_of, micro_batches=2, steps=1, compress="int8"), kind=ValueError
    )
    assert "compress='int8' with micro_batches" in said


def different_methods() -> str:
    """On a rank."""
    return error_of(lambda: DistributedDataParallel(Model(), compress="int8" if HERE.rank else "fp8"))


def test_ranks_with_other_methods_are_told(world_of):
    assert all("compress" in said for said in world_of(2).run(different_methods))


@pytest.mark.parametrize("method", ["int8", PowerSGD(2)], ids=repr)
def test_a_step_that_overflows_or_is_nothing_is_over_with_it(world_of, method):
    for all_directions in world_of(2).run(after_bad_steps, method):
        assert all_directions == (False, True, True)


def after_bad_steps(method: Any) -> tuple[bool, bool, bool]:
    """On a rank: whether gradients are finite in a step that overflows, and later; and whether factors have length."""
    model, _ = made("float32")
    ddp = DistributedDataParallel(model, compress=method)
    finite = []
    for step, scale in enumerate([float("inf") if HERE.rank else 1.0, 0.0, 1.0]):
        model.zero_grad()
        (loss_of(ddp, HERE.rank, step, 0) * scale).backward()
        finite.append(bool(model.first.weight.grad.isfinite().all()))
    factors = ddp._compression.means.factors.values()
    return finite[0], finite[2], all(bool((factor.norm(dim=0) > 0).all()) for factor in factors)


def strided() -> nn.Module:
    """Its parameters do not lie in the order of their dimensions."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Conv2d(3, 40, 3, padding=1), nn.Tanh(), nn.Conv2d(40, 3, 3, padding=1))
    model = model.to(memory_format=torch.channels_last)
    model.extra = nn.Parameter(torch.randn(30, 20).t())
    return model


def loss_of_strided(model: nn.Module, rank: int, step: int, micro: int) -> Tensor:
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(10 * step + rank))
    module = model.module if isinstance(model, DistributedDataParallel) else model
    return (model(x) - x).square().mean() + (module.extra * x.sum()).square().mean()


def trained_strided(method: Any) -> str:
    """On a rank, under another default dtype, which must not matter."""
    model = strided()
    ddp, optimizer = DistributedDataParallel(model, compress=method), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = loss_of_strided(ddp, HERE.rank, step, 0)
        torch.set_default_dtype(torch.float64)
        loss.backward()
        torch.set_default_dtype(torch.float32)
        optimizer.step()
        optimizer.zero_grad()
    return parameters_hash(model)


@pytest.mark.parametrize("method", ["sign", TopK(0.05), PowerSGD(2)], ids=repr)
def test_the_order_of_memory_does_not_matter(world_of, method):
    model = strided()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one_process(model, optimizer, loss_of_strided, ranks=2, steps=3, compress=method)
    assert world_of(2).run(trained_strided, method) == [parameters_hash(model)] * 2


@on_ranks(1)
def test_what_fails_in_the_thread_is_the_error_of_the_backward_pass() -> None:
    """After it this wrapper is of no use: the ranks' codes do not meet any more."""
    model, _ = made("float32")
    ddp = DistributedDataParallel(model, compress="int8")

    def fails(*_: object) -> None:
        raise ValueError("no more memory")

    ddp._compression.means.of, right = fails, ddp._compression.means.of
    assert "no more memory" in error_of(lambda: loss_of(ddp, 0, 0, 0).backward())
    ddp._compression.means.of = right
    assert error_of(lambda: loss_of(ddp, 0, 0, 0).backward())
    assert "into a new wrapper" in error_of(ddp.abandon_backward)


@on_ranks(2)
def test_collectives_of_the_program_do_not_meet_those_of_buckets() -> None:
    """Other ranks call them at other moments of the backward pass."""
    model, _ = made("float32")
    ddp = DistributedDataParallel(model, compress="int8", bucket_cap_mb=0.004)
    parameter = model.first.weight if HERE.rank else model.last.weight
    parameter.register_hook(lambda gradient: dist.all_reduce(torch.ones(10)) and None)
    for step in range(3):
        loss_of(ddp, HERE.rank, step, 0).backward()
