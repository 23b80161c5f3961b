"""Generators, loader positions and clipping included; and state that has no place, which is refused by name."""

from __future__ import annotations

import random
from typing import Any

import pytest
import ringdp
import torch
import torch.distributed as dist
from odd_run import OddRun, model_of
from ranks import HERE
from ringdp.checkpoint import CheckpointError, Spec
from ringdp.checkpoint.groups import Groups
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.clip import clip_grad_norm_
from ringdp.zero.optimizer import ZeroOptimizer
from ringdp.zero.stored_state import StoredState
from torch import nn
from zero_rig import ADAMW, model, same

checkpoint = ringdp.checkpoint


class Noisy:
    """A training whose every step depends on both generators and on the position in the row of batches."""

    def __init__(self, stage: int) -> None:
        torch.manual_seed(4)
        net = nn.Sequential(nn.Linear(20, 90), nn.Dropout(0.3), nn.Linear(90, 90), nn.Dropout(0.3), nn.Linear(90, 4))
        self.ddp = DistributedDataParallel(net, zero_stage=stage, bucket_cap_mb=0.02)
        self.optimizer = ZeroOptimizer(self.ddp.parameters(), torch.optim.AdamW, lr=0.01)
        self.position = 0
        torch.manual_seed(100 + HERE.rank)
        random.seed(200 + HERE.rank)

    def steps(self, count: int) -> None:
        for _ in range(count):
            source = torch.Generator().manual_seed(10 * self.position + HERE.rank)
            batch = torch.randn(6, 20, generator=source) * random.uniform(0.5, 2)
            self.optimizer.zero_grad()
            self.ddp(batch).square().mean().backward()
            clip_grad_norm_(self.ddp.parameters(), 0.05)
            self.optimizer.step()
            self.position += 1

    def save(self, folder: str) -> None:
        checkpoint.save(folder, self.ddp, self.optimizer, extra={"position": self.position})


def train_through(folder: str, stage: int) -> None:
    run = Noisy(stage)
    run.steps(3)
    run.save(f"{folder}/middle")
    run.steps(3)
    run.save(f"{folder}/end")


def train_resumed(folder: str, stage: int) -> None:
    run = Noisy(stage)
    run.steps(1)
    run.position = checkpoint.load(f"{folder}/middle", run.ddp, run.optimizer).extra["position"]
    run.steps(3)
    run.save(f"{folder}/resumed")


@pytest.mark.parametrize(("saved_at", "resumed_at"), [(2, 2), (2, 1), (1, 2)])
def test_as_many_ranks_go_on_bit_for_bit_at_any_stage(trio, tmp_path, saved_at, resumed_at):
    trio.run(train_through, str(tmp_path), saved_at)
    trio.run(train_resumed, str(tmp_path), resumed_at)
    found, expected = (checkpoint.read(tmp_path / name) for name in ("resumed", "end"))
    assert found.extras == expected.extras == [{"position": 6}] * 3
    assert found.tensors.keys() == expected.tensors.keys()
    for kind, tensors in expected.tensors.items():
        assert [name for name in tensors if not same(found.tensors[kind][name], tensors[name])] == [], kind


def refused(stage: int) -> list[str]:
    """On a rank: what is said of state without a place, of a frozen parameter and of an unknown one."""
    run = OddRun("adamw", stage)
    names = {parameter: name for name, parameter in run.model.named_parameters()}
    optimizer = run.optimizer
    groups = Groups("AdamW", optimizer.param_groups, names)
    holder = StoredState(optimizer._flats, optimizer._optimizer, groups, names)
    said = []
    for spec in (Spec("exp_avg", "frozen.weight", (64, 40), "float32"), Spec("exp_avg", "stranger", (2,), "float32")):
        try:
            list(holder.wants([spec], holder.settings()))
            said.append("")
        except CheckpointError as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("stage", [1, 2])
def test_state_without_a_place_is_refused_by_name(pair, stage):
    for frozen, stranger in pair.run(refused, stage):
        assert ("frozen.weight needs no gradient" in frozen) == (stage == 2)
        assert "no parameter for exp_avg/stranger" in stranger


def taken_frozen(folder: str) -> list[str]:
    """On a rank, at stage 1: the state of a parameter that was trained before it was frozen stays."""
    run = OddRun("sgd", 1)
    checkpoint.load(folder, run.wrapped, run.optimizer)
    checkpoint.save(folder, run.wrapped, run.optimizer)
    return sorted(checkpoint.read(folder).tensors["momentum_buffer"])


def test_state_of_a_frozen_parameter_is_kept_at_stage_1(pair, tmp_path):
    run: Any = OddRun("sgd", None)
    run.steps(1)
    run.optimizer.state[run.model.frozen.weight]["momentum_buffer"] = torch.rand_like(model_of().frozen.weight)
    checkpoint.save(tmp_path, run.model, run.optimizer)
    for kept in pair.run(taken_frozen, str(tmp_path)):
        assert "frozen.weight" in kept


def replicas(folder: str) -> list[list[str]]:
    """On one of four ranks: two groups of two train alike; all four save, and load what they have saved."""
    half = dist.new_group([HERE.rank // 2 * 2, HERE.rank // 2 * 2 + 1], use_local_synchronization=True)
    module = model()
    optimizer = ZeroOptimizer(list(module.parameters())[:2], torch.optim.AdamW, half, **ADAMW)
    optimizer.add_param_group({"params": list(module.parameters())[2:], "lr": torch.tensor(0.5)})
    for parameter in module.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    before = [p.detach().clone() for p in module.parameters()]
    checkpoint.save(folder, module, optimizer)
    optimizer.step()
    optimizer.param_groups[1]["lr"].fill_(9.0)
    checkpoint.load(folder, module, optimizer)
    plain = model()
    stock = torch.optim.AdamW([{"params": list(plain.parameters())[:2]}, {"params": list(plain.parameters())[2:]}])
    for parameter in plain.parameters():
        parameter.grad = torch.ones_like(parameter)
    stock.step()
    checkpoint.load(f"{folder}/checkpoint-000001", plain, stock, group=dist.group.WORLD)
    rates = [float(optimizer.param_groups[1]["lr"]), stock.param_groups[1]["lr"]]
    return [
        [str(rate) for rate in rates if rate != 0.5],
        [name for (name, p), b in zip(module.named_parameters(), before, strict=True) if not same(p, b)],
        [name for (name, p), b in zip(plain.named_parameters(), before, strict=True) if not same(p, b)],
    ]


def test_shards_that_several_groups_have_and_groups_that_were_added(world_of, tmp_path):
    assert world_of(4).run(replicas, str(tmp_path)) == [[[], [], []]] * 4
