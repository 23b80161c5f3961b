"""compress=... with zero_stage=2: each rank keeps its part of the means, with the bits of stage 0; what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import ringdp
import torch
from compress_runs import Model, loss_of, made
from ranks import HERE, error_of, on_ranks
from ringdp import _native
from ringdp.compress.means import Rows
from ringdp.compress.methods import Auto, Codes, PowerSGD, TopK, method_of
from ringdp.compress.owners import bucket_shards
from ringdp.compress.played import PlayedRanks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 6
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
}


def in_one_process(ranks: int, method: Any, kind: str, clip: float | None = None) -> str:
    model, _ = made("float32")
    optimizer = getattr(torch.optim, kind)(model.parameters(), foreach=False, **OPTIMIZERS[kind])

    def on_gradients(_: int) -> None:
        if clip is not None:
            ringdp.clip_grad_norm_(model.parameters(), clip)

    one_process(model, optimizer, loss_of, ranks=ranks, steps=STEPS, compress=method, on_gradients=on_gradients)
    return parameters_hash(model)


def trained(method: Any, kind: str, cap_mb: float | None, clip: float | None = None, **more: Any) -> str:
    """On a rank. more: of the optimizer."""
    model, _ = made("float32")
    given = {} if cap_mb is None else {"bucket_cap_mb": cap_mb}
    ddp = DistributedDataParallel(model, compress=method, zero_stage=2, **given)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), getattr(torch.optim, kind), **OPTIMIZERS[kind], **more)
    for step in range(STEPS):
        loss_of(ddp, HERE.rank, step, 0).backward()
        if clip is not None:
            ringdp.clip_grad_norm_(ddp.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    optimizer.wait()
    return parameters_hash(model)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("method", ["int8", "sign", TopK(0.05), PowerSGD(2, start=2)], ids=repr)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_bits_are_those_of_stage_0(world_of, ranks, method, kind):
    """Whether a bucket is all of the model, or has fewer blocks than there are ranks."""
    want = in_one_process(ranks, method, kind)
    for cap_mb in (None, 0.004):
        assert world_of(ranks).run(trained, method, kind, cap_mb) == [want] * ranks


DECISIONS = ((0, "probe"), (2, "coded"), (4, "whole"))


@pytest.mark.parametrize("method", [Codes("int8"), PowerSGD(2)], ids=repr)
def test_steps_that_are_not_compressed_take_turns_with_others(world_of, method):
    auto = Auto(method, DECISIONS)
    assert world_of(3).run(trained, auto, "SGD", None) == [in_one_process(3, auto, "SGD")] * 3


def test_gradients_are_clipped_in_shards(world_of):
    want = in_one_process(3, "int8", "SGD", 0.01)
    assert want != in_one_process(3, "int8", "SGD")
    assert world_of(3).run(trained, "int8", "SGD", None, 0.01) == [want] * 3


def gathering_in_forward() -> str:
    """On a rank."""
    return trained("sign", "AdamW", 0.004, gather="forward")


def test_gathers_may_wait_for_the_next_forward_pass(world_of):
    want = in_one_process(2, "sign", "AdamW")
    assert world_of(2).run(gathering_in_forward) == [want] * 2


@pytest.mark.parametrize("elements", [[5, 1], [3000], [20, 1500, 600, 1], [0, 7]])
@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
def test_every_block_has_the_owner_of_its_elements(elements, ranks):
    names = [str(number) for number in range(len(elements))]
    layout = _native.load().ShardLayout(elements, [list(range(len(elements)))], ranks)
    (found,) = bucket_shards(layout, names, 0)
    for block in (256, 512):
        rows = Rows(dict(zip(names, elements, strict=True)), block)
        shards = rows.shards(found.owners)
        covered = []
        for rank, owned in enumerate(found.owners):
            offset, length = shards.of(rank)
            parts = {name: rows.within(name, offset, length) for name in names}
            parts = {name: range(first, first + count) for name, (first, count) in parts.items() if count}
            assert parts == owned
            covered += [(name, at) for name, part in owned.items() for at in part]
        assert covered == [(name, at) for name, count in zip(names, elements, strict=True) for at in range(count)]


def without_elements() -> tuple[str, str]:
    """On a rank: of stages 0 and 2."""
    found = []
    for stage in (0, 2):
        torch.manual_seed(5)
        model = nn.ParameterList([torch.randn(3), torch.randn(0)])
        ddp = DistributedDataParallel(Sum(model), compress="int8", zero_stage=stage, bucket_cap_mb=1e-6)
        optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
        for _ in range(2):
            ddp(torch.tensor(1.0 + HERE.rank)).backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(parameters_hash(model))
    return found[0], found[1]


class Sum(nn.Module):
    """Of all its elements."""

    def __init__(self, parts: nn.ParameterList) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * sum(part.square().sum() for part in self.parts)


def test_parameters_without_elements(world_of):
    for whole, in_shards in world_of(2).run(without_elements):
        assert whole == in_shards


def wide_means(method: Any) -> dict[str, list[tuple[int, torch.Tensor]]]:
    """On a rank: its parts of the second pass's float32 means of 16-bit gradients."""
    model, _ = made("bfloat16")
    ddp = DistributedDataParallel(model, compress=method, zero_stage=2, grad_dtype=torch.float32)
    for step in range(2):
        ddp.zero_grad()
        loss_of(ddp, HERE.rank, step, 0).backward()
    shards, names = ddp.reducer.shards(), ddp.reducer.names
    found: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for parameter, begin, length, bucket, offset in ddp.shard_layout().pieces(HERE.rank):
        found.setdefault(names[parameter], []).append((begin, shards[bucket][offset : offset + length].clone()))
    return found


@pytest.mark.parametrize("method", ["int8", PowerSGD(2)], ids=repr)
def test_means_of_16_bit_gradients_may_stay_wide(world_of, method):
    model, optimizer = made("bfloat16")
    played = PlayedRanks(method_of(method), 3, model, optimizer)
    for step in range(2):
        by_rank = []
        for rank in range(3):
            model.zero_grad()
            loss_of(model, rank, step, 0).backward()
            by_rank.append({name: p.grad.float() for name, p in model.named_parameters()})
        want = played.mean(by_rank)
    seen = 0
    for found in world_of(3).run(wide_means, method):
        for name, parts in found.items():
            for begin, values in parts:
                assert values.dtype == torch.float32
                assert torch.equal(values, want[name].flatten()[begin : begin + len(values)])
                seen += len(values)
    assert seen == sum(p.numel() for p in model.parameters())


def on_the_wire(method: Any) -> tuple[int, int, int]:
    """On a rank: bytes of a step by the ledger, by the counters of its links, and of float32."""
    torch.manual_seed(3)
    ddp = DistributedDataParallel(nn.Linear(300, 300), compress=method, zero_stage=2)
    backend = ddp._compression.group._get_backend(torch.device("cpu"))
    for _ in range(2):
        before = backend.counters()["wire_bytes_sent"]
        ddp(torch.ones(1, 300)).sum().backward()
    ledger = ddp.ledger()
    return ledger.bytes_sent, backend.counters()["wire_bytes_sent"] - before, ledger.bytes_whole


@pytest.mark.parametrize("method", ["int8", "sign", TopK(0.05), PowerSGD(2)], ids=repr)
def test_links_carry_codes_to_owners_and_none_back(world_of, method):
    shares = {"int8": 0.254, "sign": 0.0322, repr(TopK(0.05)): 13 * 3 / 1024}
    for said, counted, whole in world_of(3, transport="tcp").run(on_the_wire, method):
        assert said <= counted <= 1.01 * said + 2000  # headers
        assert whole == pytest.approx(2 * 4 * 300 * 301 / 3, rel=0.01)
        if not isinstance(method, PowerSGD):
            share = shares[method if isinstance(method, str) else repr(method)]
            assert said == pytest.approx(share * whole, rel=0.05)


@on_ranks(2)
def test_what_does_not_go_with_it_is_refused_by_name() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    said = error_of(lambda: DistributedDataParallel(model, compress="int8", zero_stage=2), kind=NotImplementedError)
    assert "parameter weight of shape [4, 3, 3, 3] has strides [27, 1, 9, 3]" in said and "zero_stage=1" in said
    ddp = DistributedDataParallel(Model(), compress="int8", zero_stage=2)
    said = error_of(
        lambda: ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1),
        kind=NotImplementedError,
    )
    assert "overlap_with_ddp=True over a wrapper with compress" in said
    for stage in (1, 2):
        ddp = DistributedDataParallel(Model(), compress="sign", zero_stage=stage)
        said = error_of(ringdp.OneBitAdam, ddp, kind=NotImplementedError)
        assert f"OneBitAdam: zero_stage={stage}" in said and "use zero_stage=0" in said
