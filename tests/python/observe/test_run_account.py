"""Memory counted of real tensors beside preflight's formula: equal to the byte where both count the same."""

from __future__ import annotations

import functools

import pytest
import ringdp
import torch
from ringdp.observe.run_account import formula_of, memory_of
from ringdp.pages.report_figures import IN_FORMULA
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock


def stepped(wrapper, kind, **options):
    torch.manual_seed(0)
    ddp = wrapper(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    optimizer = kind(ddp.parameters(), lr=0.1, **options)
    ddp(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    return ddp, optimizer


def both(stage, kind):
    """Of a kind of optimizer at a stage (None: torch's wrapper): counted and foretold bytes, by kind."""
    optimizer_class = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[kind]
    if stage is None:
        ddp, optimizer = stepped(Stock, optimizer_class)
    elif stage == 0:
        ddp, optimizer = stepped(ringdp.DistributedDataParallel, optimizer_class)
    else:
        wrapper = functools.partial(ringdp.DistributedDataParallel, zero_stage=stage)
        ddp, optimizer = stepped(wrapper, ringdp.ZeroOptimizer, optimizer_class=optimizer_class)
    held = memory_of(ddp, optimizer)
    formula = formula_of(ddp.module, optimizer, held, 2)
    return {name: getattr(held, name) for name in IN_FORMULA}, formula, held.buckets


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("stage", [None, 0, 1, 2, 3])
def test_counted_bytes_are_the_formula_s(pair, stage, kind):
    """Of both ranks together: shares of a model as small as this one are not equal."""
    rows = pair.run(both, stage, kind)
    steps = 2 * 4 * 4 if kind == "adamw" else 0  # torch's step counts are no bytes per parameter, so nobody shares them
    for name in IN_FORMULA:
        assert sum(row[0][name] for row in rows) == pytest.approx(sum(row[1][name] for row in rows), abs=steps)
    assert rows[0][0]["parameters"] > 0 and rows[0][0]["gradients"] > 0


def test_stock_buckets_lie_beside_gradients_unless_those_are_views(pair):
    assert all(buckets == counted["gradients"] for counted, _, buckets in pair.run(both, None, "sgd"))
    assert pair.run(views)[0] == 0


def views():
    return memory_of(*stepped(functools.partial(Stock, gradient_as_bucket_view=True), torch.optim.SGD)).buckets


def hidden():
    from torch.distributed.optim import ZeroRedundancyOptimizer  # imports torch.jit, which is slow and warns

    return memory_of(*stepped(Stock, ZeroRedundancyOptimizer, optimizer_class=torch.optim.SGD))


def test_state_that_torch_shares_is_not_guessed(pair):
    assert pair.run(hidden) == [None, None]


class NeedsValues(torch.optim.SGD):
    """Its step reads a gradient's value."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.sum().item()
        return super().step(closure)


def unforetold():
    ddp, optimizer = stepped(Stock, NeedsValues)
    return formula_of(ddp.module, optimizer, memory_of(ddp, optimizer), 2)


def test_an_optimizer_that_needs_values_has_no_formula(pair):
    assert pair.run(unforetold) == [None, None]
