"""The reducer under torch's names: limits from the wrapper's arguments, futures, static graphs under no_sync."""

from __future__ import annotations

import pytest
import torch
from ranks import HERE, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from small_models import fresh

MIB = 1 << 20
LIMITS = [
    ({}, [MIB, 25 * MIB]),
    ({"bucket_cap_mb": 3}, [3 * MIB]),
    ({"bucket_cap_mb": 0.5}, [MIB // 2]),
    ({"bucket_cap_mb": 0}, [0]),
    ({"bucket_cap_mb_list": [1, 4]}, [MIB, 4 * MIB]),
]


def limits_of(arguments: dict[str, object]) -> list[int]:
    from ringdp.ddp.reducer import bucket_limits

    return bucket_limits(DistributedDataParallel(fresh(), **arguments))


@pytest.mark.parametrize(("arguments", "limits"), LIMITS)
def test_bucket_limits_are_those_of_the_arguments(world_of, arguments, limits):
    assert world_of(1).run(limits_of, arguments) == [limits]


@on_ranks(2, [True, True])
def test_installed_futures_are_waited_for() -> list[bool]:
    """A future that a buffer hook installs is waited for by the end of backward."""
    ddp = DistributedDataParallel(fresh())
    done: list[bool] = []
    future: torch.futures.Future = torch.futures.Future()
    future.add_done_callback(lambda _: done.append(True))
    ddp.reducer._install_post_backward_futures([future])
    loss = ddp(torch.ones(2, 12)).sum()
    loss.register_hook(lambda _: future.set_result(None))
    loss.backward()
    return [*done, not ddp.reducer._futures]


def static_after_no_sync() -> list[float]:
    """On a rank: a static graph whose first backward pass is not synchronised."""
    ddp = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False), static_graph=True)
    x = torch.full((1, 2), float(HERE.rank + 1))
    with ddp.no_sync():
        ddp(x).sum().backward()
    local = ddp.module.weight.grad[0, 0].item()
    ddp(x).sum().backward()
    first = ddp.module.weight.grad[0, 0].item()
    ddp.module.weight.grad = None
    ddp(x).sum().backward()
    return [local, first, ddp.module.weight.grad[0, 0].item()]


def test_a_static_graph_may_begin_under_no_sync(pair):
    assert pair.run(static_after_no_sync) == [[rank + 1.0, 3.0, 1.5] for rank in range(2)]


@on_ranks(1, error=("NotImplementedError", "_set_sparse_metadata"))
def test_sparse_metadata_is_refused_by_name() -> None:
    ddp = DistributedDataParallel(fresh())
    ddp._set_sparse_metadata({})
