"""The table of resumes: what N ranks have saved at one stage goes on at any other N and stage as one process would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ringdp
import torch
from ranks import HERE, group_of
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import loss_of
from zero_rig import ADAMW, differences, model, same, steps, wrapped

checkpoint = ringdp.checkpoint
SAVED_BY, BEFORE, AFTER = 4, 3, 3


def run_of(
    stage: int, backend: str = "ringdp", lr: float = ADAMW["lr"]
) -> tuple[DistributedDataParallel, ZeroOptimizer]:
    """lr: for who loads, another one than the checkpoint's."""
    ddp = wrapped(stage, backend)
    return ddp, ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **{**ADAMW, "lr": lr})


def in_one_process(*stages: tuple[int, int]) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """stages: (ranks, steps), one after the other."""
    plain = model()
    alone = torch.optim.AdamW(plain.parameters(), **ADAMW)
    start = 0
    for ranks, count in stages:
        one_process(
            plain, alone, lambda *at, start=start: loss_of(*at[:2], start + at[2], at[3]), ranks=ranks, steps=count
        )
        start += count
    return plain, alone


def save(folder: str, stage: int, backend: str) -> list[str]:
    """On a rank: saves, and trains on without an interruption; what is not as in one process then."""
    ddp, optimizer = run_of(stage, backend)
    steps(ddp, optimizer, BEFORE)
    checkpoint.save(folder, ddp, optimizer, extra={"step": BEFORE}, group=group_of(backend))
    steps(ddp, optimizer, AFTER, start=BEFORE)
    return differences(ddp, optimizer, *in_one_process((HERE.size, BEFORE + AFTER)))


def resume(folder: str, stage: int, backend: str) -> tuple[list[str], list[str]]:
    """On a rank: what loading has changed, and what is not as in one process after the steps that follow."""
    ddp, optimizer = run_of(stage, backend, lr=7.0)
    steps(ddp, optimizer, 1)  # a state that must go
    extra = checkpoint.load(folder, ddp, optimizer, group=group_of(backend)).extra
    changed = differences(ddp, optimizer, *in_one_process((SAVED_BY, BEFORE)))
    steps(ddp, optimizer, AFTER, start=extra["step"])
    return changed, differences(ddp, optimizer, *in_one_process((SAVED_BY, BEFORE), (HERE.size, AFTER)))


@pytest.fixture(scope="module")
def saved(world_of, tmp_path_factory) -> Any:
    """saved(2, "ringdp"): the folder of four ranks' checkpoint."""
    known: dict[tuple[int, str], Path] = {}

    def get(stage: int, backend: str) -> Path:
        if (stage, backend) not in known:
            folder = known[stage, backend] = tmp_path_factory.mktemp("saved")
            assert world_of(SAVED_BY).run(save, str(folder), stage, backend) == [[]] * SAVED_BY
        return known[stage, backend]

    return get


@pytest.mark.parametrize(
    ("stage", "ranks", "at", "backend"),
    [
        (2, 3, 1, "ringdp"),
        (2, 2, 2, "ringdp"),
        (2, 1, 2, "ringdp"),
        (2, 4, 2, "ringdp"),
        (1, 2, 2, "ringdp"),
        (1, 4, 2, "ringdp"),
        (2, 3, 1, "gloo"),
        (2, 4, 2, "gloo"),
        (3, 3, 1, "ringdp"),
        (3, 2, 2, "ringdp"),
        (3, 1, 3, "ringdp"),
        (3, 4, 3, "ringdp"),
        (2, 3, 3, "ringdp"),
        (3, 3, 3, "gloo"),
    ],
)
def test_no_bit_changes_and_the_run_goes_on_as_one_process(world_of, saved, stage, ranks, at, backend):
    folder = saved(stage, backend)
    assert world_of(ranks).run(resume, str(folder), at, backend) == [([], [])] * ranks


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_torchs_own_optimizer_goes_on(saved, stage):
    plain = model()
    alone = torch.optim.AdamW(plain.parameters(), lr=7.0)
    checkpoint.load(saved(stage, "ringdp"), plain, alone)
    one_process(plain, alone, lambda *at: loss_of(*at[:2], BEFORE + at[2], at[3]), ranks=1, steps=AFTER)
    assert unequal((plain, alone), in_one_process((SAVED_BY, BEFORE), (1, AFTER))) == []


def unequal(found: Any, expected: Any) -> list[str]:
    """Names of tensors and groups of a plain module and torch's optimizer that are not equal."""
    (module, optimizer), (other, stock) = found, expected
    wrong = [name for (name, a), b in zip(module.named_parameters(), other.parameters(), strict=True) if not same(a, b)]
    here, there = optimizer.state_dict(), stock.state_dict()
    wrong += ["groups"] * (here["param_groups"] != there["param_groups"])
    wrong += ["state"] * (here["state"].keys() != there["state"].keys())
    for index, entry in there["state"].items():
        wrong += [f"state {index} {key}" for key in entry if not same(here["state"][index][key], entry[key])]
    return wrong


@pytest.mark.parametrize("at", [1, 2, 3])
def test_torchs_own_optimizer_is_taken_up(world_of, tmp_path, at):
    checkpoint.save(tmp_path, *in_one_process((SAVED_BY, BEFORE)), extra={"step": BEFORE})
    assert world_of(3).run(resume, str(tmp_path), at, "ringdp") == [([], [])] * 3
