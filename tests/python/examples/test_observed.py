"""What a run observes of itself: memory beside its formula, overlap where the wrapper says it, links where they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ringdp.examples.observed import links_of_default_group, observe
from ringdp.examples.parallel import adamw, data_parallel


def trained(kind: str) -> tuple[Any, Any, Any]:
    """A model of 72 parameters after a step, behind a wrapper of that kind."""
    model = torch.nn.Linear(8, 8)
    ddp = data_parallel(model, kind)
    optimizer = adamw(ddp, 1e-3)
    ddp(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return model, ddp, optimizer


def test_memory_equals_the_formula(alone: None) -> None:
    seen = observe(*trained("ringdp"), stage=0)
    assert seen.parameters == 72 and seen.formula_bytes == 16 * 72
    assert seen.memory is not None
    # torch's step counts, one float32 for each of the two parameters, are no bytes per parameter
    assert seen.memory.total - seen.memory.padding - seen.memory.buckets == 16 * 72 + 2 * 4


def test_overlap_is_the_latest_step_s(alone: None) -> None:
    model, ddp, optimizer = trained("ringdp")
    overlap = observe(model, ddp, optimizer, stage=0).overlap
    times = ddp.times()
    assert overlap is not None
    assert (overlap.step, overlap.exposed, overlap.overlap) == (times.step, times.exposed, times.overlap)
    assert overlap.verdict == times.verdict and overlap.buckets == times.buckets


def test_stock_ddp_keeps_no_account(alone: None) -> None:
    seen = observe(*trained("stock"), stage=0)
    assert seen.memory is None and seen.overlap is None
    assert seen.links == []  # gloo does not say


def test_links_and_why() -> None:
    pytest.importorskip("ringdp")
    dist.init_process_group("ringdp", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert any(line.startswith("plan: ") for line in links_of_default_group())
    finally:
        dist.destroy_process_group()
