"""Arguments: torch's by name, ringdp's own, refusals by name, groups by order."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.ddp.modes import STOCK_ARGUMENTS, Modes, check_arguments, group_for, ring_options
from ringdp.ddp.wrapper import DistributedDataParallel
from small_models import fresh, train
from torch.nn.parallel import DistributedDataParallel as Stock

CPU = torch.device("cpu")


def test_torchs_arguments_are_probed_not_listed():
    assert tuple(inspect.signature(Stock.__init__).parameters)[1:] == STOCK_ARGUMENTS
    assert {"overlap", "order", "zero_stage"} <= set(inspect.signature(DistributedDataParallel.__init__).parameters)


@pytest.mark.parametrize(
    ("kwargs", "zero_stage", "error", "says"),
    [
        ({"bucket_cap": 1}, 0, TypeError, "no argument 'bucket_cap'"),
        ({}, 2, NotImplementedError, "zero_stage=2"),
        ({"mixed_precision": "bf16"}, 0, NotImplementedError, "mixed_precision='bf16'"),
        ({"module": None}, 0, TypeError, "multiple values"),
    ],
)
def test_what_is_refused_is_named(kwargs, zero_stage, error, says):
    with pytest.raises(error, match=says):
        check_arguments(torch.nn.Linear(1, 1), (), kwargs, zero_stage)


def test_compilers_own_reducer_is_refused():
    refused = pytest.raises(NotImplementedError, match="python_reducer")
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"), refused:
        check_arguments(torch.nn.Linear(1, 1), (), {}, 0)


def test_plain_arguments_are_what_ranks_compare():
    given = check_arguments(
        torch.nn.Linear(1, 1), ([3],), {"bucket_cap_mb": 2, "process_group": object(), "static_graph": True}, 0
    )
    assert given.items() >= {"bucket_cap_mb": 2, "static_graph": True, "init_sync": True}.items()
    assert not {"device_ids", "process_group"} & set(given)
    spelled_out = check_arguments(torch.nn.Linear(1, 1), (), {"static_graph": False, "dim": 0}, 0)
    assert spelled_out == check_arguments(torch.nn.Linear(1, 1), (), {}, 0)


def test_orders_are_checked():
    with pytest.raises(ValueError, match="order='ring'"):
        Modes(order="ring")


def groups_of_orders() -> list[str]:
    """On a rank: what a group's order and algorithm are for each order asked of the wrapper."""
    told = []
    for order in (None, "rank", "rotated"):
        options = ring_options(group_for(dist.group.WORLD, CPU, order), CPU)
        told.append(f"{options.get('order')} {options.get('algorithm')}")
    return told


def test_the_textbook_ring_gets_a_group_of_its_own(pair):
    assert pair.run(groups_of_orders) == [["rank auto", "rank auto", "rotated ring"]] * 2


def rank_order_of_a_rotated_group() -> str:
    group = dist.new_group(range(HERE.size), backend="ringdp", pg_options={"order": "rotated", "algorithm": "ring"})
    assert group_for(group, CPU, "rotated") is group
    try:
        DistributedDataParallel(fresh(), process_group=group, order="rank")
    except ValueError as error:
        return str(error)
    return ""


def test_a_group_of_another_order_is_refused(pair):
    assert all("made with order='rotated'" in said for said in pair.run(rank_order_of_a_rotated_group))


def means_differ() -> tuple[bool, bool]:
    """On a rank: rotated sums have other bits than rank order, the same ones on every rank."""
    rotated = train(order="rotated")
    hashes = [""] * HERE.size
    dist.all_gather_object(hashes, rotated)
    return rotated != train(order="rank"), len(set(hashes)) == 1


def test_rotated_is_another_order(trio):
    assert trio.run(means_differ) == [(True, True)] * 3
