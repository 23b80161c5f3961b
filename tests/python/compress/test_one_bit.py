"""ringdp.OneBitAdam: AdamW's bits until it freezes, those of a process that plays the ranks afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import ringdp
import torch
import torch.distributed as dist
from compress_runs import Model, loss_of, train
from ranks import HERE, error_of, on_ranks
from ringdp.compress.methods import PowerSGD, TopK
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, FREEZE = 8, 3


def made(dtype: str = "float32") -> nn.Module:
    torch.manual_seed(3)
    return Model().to(getattr(torch, dtype))


def in_one_process(ranks: int, method: Any, dtype: str = "float32", steps: int = STEPS) -> str:
    model = made(dtype)
    optimizer = ringdp.OneBitAdam(model, lr=0.01, freeze=FREEZE)
    one_process(model, optimizer, loss_of, ranks=ranks, steps=steps, compress=method)
    return parameters_hash(model)


def trained(method: Any, dtype: str, cap_mb: float | None, steps: range = range(STEPS), folder: str = "") -> str:
    """On a rank."""
    model = made(dtype)
    given = {} if cap_mb is None else {"bucket_cap_mb": cap_mb}
    ddp = DistributedDataParallel(model, compress=method, **given)
    optimizer = ringdp.OneBitAdam(ddp, lr=0.01, freeze=FREEZE)
    train(ddp, optimizer, steps, folder)
    return parameters_hash(model)


@pytest.mark.parametrize("method", ["sign", "int8", TopK(0.05)], ids=repr)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_bits_are_those_of_a_process_that_plays_the_ranks(world_of, method, ranks):
    want = in_one_process(ranks, method)
    for cap_mb in (None, 0.004):
        assert world_of(ranks).run(trained, method, "float32", cap_mb) == [want] * ranks


def test_also_in_16_bits(world_of):
    assert world_of(2).run(trained, "sign", "bfloat16", None) == [in_one_process(2, "sign", "bfloat16")] * 2


def test_until_it_freezes_it_is_adamw():
    model = made()
    adamw = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    one_process(model, adamw, loss_of, ranks=2, steps=FREEZE)
    assert in_one_process(2, "sign", steps=FREEZE) == parameters_hash(model)
    one_process(model, adamw, loss_of, ranks=2, steps=1)
    assert in_one_process(2, "sign", steps=FREEZE + 1) != parameters_hash(model)


@pytest.mark.parametrize("stop", [FREEZE - 1, FREEZE, FREEZE + 2])
def test_a_training_goes_on_with_the_bits_of_one_that_has_not_stopped(world_of, tmp_path, stop):
    world_of(2).run(trained, "sign", "float32", None, range(stop), str(tmp_path))
    found = world_of(2).run(trained, "sign", "float32", 0.004, range(stop, STEPS), str(tmp_path))
    assert found == [in_one_process(2, "sign")] * 2


def test_state_dicts_know_that_it_is_frozen():
    model, steps = made(), FREEZE + 1
    optimizer = ringdp.OneBitAdam(model, lr=0.01, freeze=FREEZE)
    one_process(model, optimizer, loss_of, ranks=1, steps=steps, compress="int8")
    again = ringdp.OneBitAdam(made(), lr=0.01, freeze=FREEZE)
    again.load_state_dict(optimizer.state_dict())
    assert optimizer.is_frozen and again.is_frozen
    known, found = (next(iter(one.state.values())) for one in (optimizer, again))
    assert set(known) == set(found) == {"step", "exp_avg", "denominator"}
    assert torch.equal(known["denominator"], found["denominator"])


@pytest.mark.parametrize(("growth", "freezes"), [(1.0, True), (1.2, False)])
def test_it_freezes_when_second_moments_stand_still(growth, freezes):
    model = nn.Linear(8, 8)
    optimizer = ringdp.OneBitAdam(model, betas=(0.9, 0.95))  # looks 20 steps back
    for step in range(40):
        model.weight.grad, model.bias.grad = (torch.full_like(p, growth**step) for p in (model.weight, model.bias))
        optimizer.step()
        if optimizer.is_frozen:
            break
    assert step >= 19
    assert optimizer.is_frozen == freezes


def test_signs_reach_the_bottom_of_a_bowl_whose_sides_differ():
    """Gradients of very different size, which one scale for all of them would mix up."""
    torch.manual_seed(0)
    model, aim = nn.Linear(32, 16, bias=False), torch.randn(16, 32)
    scale = torch.logspace(-3, 3, 32)
    optimizer = ringdp.OneBitAdam(model, weight_decay=0.0, freeze=20)
    losses: list[float] = []

    def loss(one: nn.Module, rank: int, step: int, micro: int) -> torch.Tensor:
        del rank, micro
        optimizer.param_groups[0]["lr"] = 0.1 * 0.985**step
        found = ((one.weight - aim).square() * scale).sum()
        losses.append(float(found.detach()))
        return found

    one_process(model, optimizer, loss, ranks=2, steps=400, compress="sign")
    assert losses[-1] < 0.02 * losses[0]


def test_an_element_that_had_no_gradient_does_not_leap():
    model = nn.Embedding(4, 8)
    optimizer = ringdp.OneBitAdam(model, lr=0.01, weight_decay=0.0, freeze=5)
    before = model.weight.detach().clone()

    def loss(one: nn.Module, rank: int, step: int, micro: int) -> torch.Tensor:
        del rank, micro
        return one(torch.tensor([0, 1] if step < 6 else [3])).square().sum()

    one_process(model, optimizer, loss, ranks=1, steps=7, compress="int8")
    assert 0 < float((model.weight.detach() - before)[3].abs().max()) < 0.01 * 100


def sent_by_step(method: str) -> list[int]:
    """On a rank."""
    ddp = DistributedDataParallel(nn.Linear(300, 300), compress=method)
    optimizer = ringdp.OneBitAdam(ddp, freeze=2)
    backends = [group._get_backend(torch.device("cpu")) for group in (ddp.process_group, ddp._compression.group)]
    sent = []
    for _ in range(5):
        before = sum(backend.counters()["wire_bytes_sent"] for backend in backends)
        ddp(torch.randn(1, 300)).square().sum().backward()
        sent.append(sum(backend.counters()["wire_bytes_sent"] for backend in backends) - before)
        optimizer.step()
        optimizer.zero_grad()
    return sent


def test_links_carry_gradients_and_then_signs(world_of):
    for sent in world_of(2, transport="tcp").run(sent_by_step, "sign"):
        whole = 4 * 300 * 301
        assert all(0.98 * whole < of_step < 1.02 * whole + 4000 for of_step in sent[:2])
        assert all(of_step < 0.035 * whole + 4000 for of_step in sent[2:])


@on_ranks(2)
def test_what_it_is_not_for_is_refused_by_name() -> None:
    for compress in (PowerSGD(2), "auto:int8"):
        ddp = DistributedDataParallel(Model(), compress=compress)
        assert "it is for codes that are always sent" in error_of(ringdp.OneBitAdam, ddp, kind=NotImplementedError)
    plain = DistributedDataParallel(Model())
    assert "compress='sign'" in error_of(ringdp.OneBitAdam, plain, kind=ValueError)
    model = Model()
    assert "not its parameters" in error_of(ringdp.OneBitAdam, model.parameters(), kind=TypeError)
    assert "freeze=0" in error_of(lambda: ringdp.OneBitAdam(model, freeze=0), kind=ValueError)
    optimizer = ringdp.OneBitAdam(model, freeze=1)
    assert "closure" in error_of(optimizer.step, lambda: 0.0, kind=NotImplementedError)
    assert "add_param_group" in error_of(optimizer.add_param_group, {"params": []}, kind=NotImplementedError)
    model.scale.grad = torch.ones(())
    assert "has had no gradient in 1 step," in error_of(optimizer.step)


def differing() -> str:
    """On a rank."""
    ddp = DistributedDataParallel(Model(), compress="sign")
    return error_of(lambda: ringdp.OneBitAdam(ddp, freeze=100 + HERE.rank), kind=ValueError)


def test_ranks_that_would_freeze_at_other_steps_are_told(world_of):
    for said in world_of(2).run(differing):
        assert "freeze must be the same on all ranks, and is 100, 101, by rank" in said


@on_ranks(2)
def test_gradients_that_are_no_momenta_are_refused_by_name() -> None:
    model = Model()
    optimizer = ringdp.OneBitAdam(model, freeze=1)  # of the model, not of its wrapper
    ddp = DistributedDataParallel(model, compress="sign")
    for step in range(2):
        loss_of(ddp, HERE.rank, step, 0).backward()
        said = error_of(optimizer.step) if step else optimizer.step()
    assert "as OneBitAdam(ddp)" in said
    ddp = DistributedDataParallel(Model(), compress="sign")
    optimizer = ringdp.OneBitAdam(ddp, freeze=1)
    loss_of(ddp, HERE.rank, 0, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    loss_of(ddp, HERE.rank, 1, 0).backward()
    assert "two synchronised backward passes" in error_of(lambda: loss_of(ddp, HERE.rank, 2, 0).backward())


@pytest.mark.parametrize("how", ["optimizer", "set to 0", "module"])
@on_ranks(2, [True, True])
def test_a_step_may_be_left_out(how: str) -> list[bool]:
    """Once momenta travel: after zero_grad() the next pass is one of its own, from the momenta that are there."""
    ddp = DistributedDataParallel(Model(), compress="int8")
    optimizer = ringdp.OneBitAdam(ddp, freeze=1)
    drop = {
        "optimizer": optimizer.zero_grad,
        "set to 0": lambda: optimizer.zero_grad(set_to_none=False),
        "module": ddp.zero_grad,
    }[how]
    for step in range(4):
        before = [p.detach().clone() for p in ddp.parameters()]
        loss_of(ddp, HERE.rank, step, 0).backward()
        if step != 2:
            optimizer.step()
        drop()
        moved = [not torch.equal(p, known) for p, known in zip(ddp.parameters(), before, strict=True)]
        assert any(moved) == (step != 2)
    hashes: list[str] = [""] * 2
    dist.all_gather_object(hashes, parameters_hash(ddp))
    return [optimizer.is_frozen, hashes[0] == hashes[1]]


@on_ranks(2)
def test_without_its_optimizer_gradients_are_compressed_again() -> None:
    ddp = DistributedDataParallel(Model(), compress="sign")
    optimizer = ringdp.OneBitAdam(ddp)
    loss_of(ddp, HERE.rank, 0, 0).backward()
    assert not ddp.ledger().buckets
    del optimizer
    loss_of(ddp, HERE.rank, 1, 0).backward()
    assert ddp.ledger().buckets


def test_a_state_dict_in_16_bits_and_one_of_adamw():
    model = made("bfloat16")
    optimizer = ringdp.OneBitAdam(model, lr=0.01, freeze=FREEZE)
    one_process(model, optimizer, loss_of, ranks=1, steps=FREEZE + 1, compress="int8")
    again = ringdp.OneBitAdam(made("bfloat16"), freeze=FREEZE)
    again.load_state_dict(optimizer.state_dict())
    for known, found in zip(optimizer.state.values(), again.state.values(), strict=True):
        assert found["denominator"].dtype == torch.float32 and torch.equal(known["denominator"], found["denominator"])
    adamw = torch.optim.AdamW(made().parameters())
    warm = ringdp.OneBitAdam(made(), freeze=7)
    warm.load_state_dict(adamw.state_dict())
    assert not warm.is_frozen and warm.told()["freeze"] == 7
