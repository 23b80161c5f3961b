"""Stage 3: the bits of one process, for models that are hard to divide, whatever the arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import HERE, on_ranks
from ringdp.testing import one_process
from ringdp.zero.clip import clip_grad_norm_
from small_models import fresh, loss_of
from unit_models import MODELS, Block, alone, made
from zero_rig import ADAMW, differences, steps


def trained(kind: str, backend: str = "ringdp", given: dict[str, Any] | None = None) -> list[str]:
    """On a rank: what is not as in one process after three steps."""
    ddp, optimizer = made(kind, backend, **(given or {}))
    steps(ddp, optimizer, 3)
    return differences(ddp, optimizer, *alone(kind, 3))


@pytest.mark.parametrize("kind", MODELS)
def test_state_is_that_of_one_process(trio, kind):
    assert trio.run(trained, kind) == [[]] * 3


ARGUMENTS = [
    {"prefetch": False},
    {"overlap": False},
    {"static_graph": True},
    {"find_unused_parameters": True},
    {"units": [Block]},
    {"units": []},
    {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
]


@pytest.mark.parametrize("given", ARGUMENTS, ids=str)
def test_arguments_change_no_bit(trio, given):
    assert trio.run(trained, "stack", "ringdp", given) == [[]] * 3


@pytest.mark.parametrize("kind", ["stack", "recomputed", "types"])
def test_over_gloo(trio, kind):
    assert trio.run(trained, kind, "gloo") == [[]] * 3


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks(world_of, ranks):
    for kind in ("stack", "frozen", "tied"):
        assert world_of(ranks).run(trained, kind) == [[]] * ranks


@pytest.mark.parametrize("quiet", [True, False])
@on_ranks(3, [])
def test_micro_batches_add_up(quiet: bool) -> list[str]:
    """Two micro-batches per step, the first under no_sync or not."""
    ddp, optimizer = made("stack")
    for step in range(2):
        optimizer.zero_grad()
        for micro in range(2):
            ddp.require_backward_grad_sync = not (quiet and micro == 0)
            loss_of(ddp, HERE.rank, step, micro).backward()
        optimizer.step()
    return differences(ddp, optimizer, *alone("stack", 2, accumulate=2, sync_each=not quiet))


@on_ranks(3, [])
def test_clipping_is_that_of_one_process() -> list[str]:
    ddp, optimizer = made("stack")
    for step in range(2):
        optimizer.zero_grad()
        loss_of(ddp, HERE.rank, step, 0).backward()
        clip_grad_norm_(ddp.parameters(), 0.01)
        optimizer.step()
    plain = fresh(MODELS["stack"])
    optimizer_alone = torch.optim.AdamW(plain.parameters(), **ADAMW)
    one_process(
        plain,
        optimizer_alone,
        loss_of,
        ranks=HERE.size,
        steps=2,
        on_gradients=lambda _: clip_grad_norm_(plain.parameters(), 0.01),
    )
    return differences(ddp, optimizer, plain, optimizer_alone)


@on_ranks(3, [])
def test_weights_and_ranks_without_samples() -> list[str]:
    """Summed losses of rank + 1 samples, and none on the last."""
    ddp, optimizer = made("stack")

    def samples(rank: int, _: int = 0) -> int:
        return 0 if rank == HERE.size - 1 else rank + 1

    for step in range(2):
        optimizer.zero_grad()
        loss = loss_of(ddp, HERE.rank, step, 0, samples(HERE.rank), "sum")
        ddp.backward(loss, weight=samples(HERE.rank))
        optimizer.step()
    plain = fresh(MODELS["stack"])
    other = torch.optim.AdamW(plain.parameters(), **ADAMW)
    one_process(
        plain,
        other,
        lambda net, rank, step, micro: loss_of(net, rank, step, micro, samples(rank), "sum"),
        ranks=HERE.size,
        steps=2,
        weights=samples,
    )
    return differences(ddp, optimizer, plain, other)
