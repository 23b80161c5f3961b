"""Arguments: torch's by name, ringdp's own, refusals by name, groups by order."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, on_ranks
from ringdp.ddp.modes import STOCK_ARGUMENTS, Modes, check_arguments, group_for, ring_options
from ringdp.ddp.wrapper import DistributedDataParallel
from small_models import fresh, train
from torch.nn.parallel import DistributedDataParallel as Stock

CPU = torch.device("cpu")


def test_torchs_arguments_are_probed_not_listed():
    assert tuple(inspect.signature(Stock.__init__).parameters)[1:] == STOCK_ARGUMENTS
    ours = inspect.signature(DistributedDataParallel.__init__).parameters
    assert {"overlap", "order", "zero_stage", "grad_dtype"} <= set(ours)


@pytest.mark.parametrize(
    ("kwargs", "zero_stage", "error", "says"),
    [
        ({"bucket_cap": 1}, 0, TypeError, "no argument 'bucket_cap'"),
        ({"mixed_precision": "bf16"}, 2, NotImplementedError, "mixed_precision='bf16' with zero_stage=2"),
        ({"delay_all_reduce_named_params": [("p", None)]}, 2, NotImplementedError, "delay_all_reduce_named_params"),
        ({"mixed_precision": "bf16"}, 0, NotImplementedError, "mixed_precision='bf16'"),
        ({"module": None}, 0, TypeError, "multiple values"),
    ],
)
def test_what_is_refused_is_named(kwargs, zero_stage, error, says):
    with pytest.raises(error, match=says):
        check_arguments(torch.nn.Linear(1, 1), (), kwargs, Modes(zero_stage=zero_stage))


def test_compilers_own_reducer_is_refused():
    refused = pytest.raises(NotImplementedError, match="python_reducer")
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"), refused:
        check_arguments(torch.nn.Linear(1, 1), (), {}, Modes())


def test_plain_arguments_are_what_ranks_compare():
    given = check_arguments(
        torch.nn.Linear(1, 1), ([3],), {"bucket_cap_mb": 2, "process_group": object(), "static_graph": True}, Modes()
    )
    assert given.items() >= {"bucket_cap_mb": 2, "static_graph": True, "init_sync": True}.items()
    assert not {"device_ids", "process_group"} & set(given)
    spelled_out = check_arguments(torch.nn.Linear(1, 1), (), {"static_graph": False, "dim": 0}, Modes())
    assert spelled_out == check_arguments(torch.nn.Linear(1, 1), (), {}, Modes())


def test_orders_are_checked():
    with pytest.raises(ValueError, match="order='ring'"):
        Modes(order="ring")


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"zero_stage": 4}, ValueError, "zero_stage=4, must be 0, 1, 2 or 3"),
        ({"prefetch": False}, ValueError, "prefetch=False with zero_stage=0"),
        ({"zero_stage": 2, "prefetch": False}, ValueError, "prefetch=False with zero_stage=2"),
        ({"zero_stage": 2, "grad_dtype": torch.float16}, ValueError, "grad_dtype=torch.float16"),
        ({"zero_stage": 1, "grad_dtype": torch.float32}, ValueError, "zero_stage=1"),
    ],
)
def test_stages_are_checked(given, error, says):
    with pytest.raises(error, match=says):
        Modes(**given)


@on_ranks(2, ["rank auto", "rank auto", "rotated ring"])
def test_the_textbook_ring_gets_a_group_of_its_own() -> list[str]:
    """What a group's order and algorithm are for each order asked of the wrapper."""
    told = []
    for order in (None, "rank", "rotated"):
        options = ring_options(group_for(dist.group.WORLD, CPU, order), CPU)
        told.append(f"{options.get('order')} {options.get('algorithm')}")
    return told


@on_ranks(2, error=("ValueError", "made with order='tree'"))
def test_a_group_that_sums_along_a_tree_is_refused() -> None:
    DistributedDataParallel(fresh(), process_group=dist.new_group(pg_options={"order": "tree"}), order="rank")


@on_ranks(2, error=("ValueError", "made with order='rotated'"))
def test_a_group_of_another_order_is_refused() -> None:
    group = dist.new_group(range(HERE.size), backend="ringdp", pg_options={"order": "rotated", "algorithm": "ring"})
    assert group_for(group, CPU, "rotated") is group
    DistributedDataParallel(fresh(), process_group=group, order="rank")


@on_ranks(3, (True, True))
def test_rotated_is_another_order() -> tuple[bool, bool]:
    """Rotated sums have other bits than rank order, the same ones on every rank."""
    rotated = train(order="rotated")
    hashes = [""] * HERE.size
    dist.all_gather_object(hashes, rotated)
    return rotated != train(order="rank"), len(set(hashes)) == 1
