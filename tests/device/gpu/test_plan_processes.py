"""Device plans of several processes that share one GPU (STREAM), over memory that they map: the same bits."""

from __future__ import annotations

import one_gpu as gpu
import pytest
import torch
from ranks import HERE

gpu.require()
from devices.core import SHARE_AUTO, SHARE_FD
from devices.one_rank import OneRank
from devices.plan import Problem

KINDS = [
    ("all_reduce", "direct"),
    ("all_reduce", "one_shot"),
    ("all_reduce", "ring/rank"),
    ("reduce_scatter", "direct"),
    ("all_gather", "direct"),
    ("all_to_all", "direct"),
]


def problems_of(world: int) -> list[Problem]:
    return [
        Problem(collective, algorithm, gpu.name_of(dtype), world=world, count=packs * 16 // dtype.itemsize)
        for collective, algorithm in KINDS
        for dtype in (torch.float32, torch.bfloat16)
        for packs in (1, 5001)
    ]


def run_all(sharing: int) -> list[str]:
    """On a rank: every problem whose bytes were wrong here."""
    problems = problems_of(HERE.size)
    wrong = []
    with OneRank(gpu.open_core(), gpu.place(), problems, sharing=sharing) as rank:
        for problem in problems:
            inputs = gpu.inputs_of(problem)
            rank.put(gpu.bytes_of(inputs[HERE.rank]))
            rank.launch(problem)
            right = gpu.expected(problem, inputs, HERE.rank)
            if rank.get(len(right)) != right or rank.expired().set:
                wrong.append(str(problem))
    return wrong


@pytest.mark.parametrize("sharing", [SHARE_AUTO, SHARE_FD], ids=["IPC", "descriptors"])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_processes_have_the_bits_of_the_serial_fold(world_of, world, sharing):
    if sharing == SHARE_FD and not gpu.open_core().describe().shares_fds:
        pytest.skip("this driver shares no memory by descriptors")
    assert world_of(world).run(run_all, sharing) == [[]] * world
