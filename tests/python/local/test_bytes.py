"""What ranks send in a round, counted, against the formula."""

from __future__ import annotations

import math

import pytest
import ringdp
import torch
from ranks import HERE
from ringdp.compress.codec import FLOAT32
from ringdp.compress.exchange import Allotment
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
CELLS = ((8, None, 1, 0), (8, "int8", 2, 0), (8, "int4", 2, 3), (7, None, 2, 1), (5, "int8", 1, 2), (6, "topk", 1, 1))
CELLS += ((5, "topk-2bit", 2, 1), (6, "topk-2bit", 1, 0))  # places of means are listed, or a bit each
ELEMENTS = 2 * 300 * 400


def sent_so_far() -> int:
    return sum(group["counters"]["wire_bytes_sent"] for group in ringdp.stats()["groups"])


def counted(workers: int, compress: str | None, fragments: int, delay: int) -> tuple[int, int, str]:
    """On a rank: bytes sent in a round, steps 6 to 9, and the formula's; the description."""
    model = nn.Sequential(nn.Linear(300, 400, bias=False), nn.Linear(400, 300, bias=False))
    local = ringdp.DiLoCo(
        model,
        lambda ps: torch.optim.SGD(ps, lr=0.1),
        workers=workers, every=4, compress=compress, fragments=fragments, delay=delay,
    )  # fmt: skip
    sent = {}
    for step in range(1, 10):
        for worker in local.workers():
            with local.worker(worker):
                model(torch.ones(1, 300)).sum().backward()
        local.step()
        for arriving in local._meetings.on_the_way.values():
            arriving.exchange.mean()  # waits, so that all that has left is counted
        sent[step] = sent_so_far()
    return sent[9] - sent[5], local.bytes_sent(), local.describe()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_bytes_are_those_of_the_formula(world_of, ranks):
    world = world_of(ranks, transport="tcp")
    for cell in CELLS:
        workers, compress, fragments, _ = cell
        for rank, (found, formula, described) in enumerate(world.run(counted, *cell)):
            assert found == formula, f"{cell}: rank {rank} of {ranks} sent {found}"
            own = len(range(rank * workers // ranks, (rank + 1) * workers // ranks))
            assert f"{workers} workers on {ranks} rank" in described and f"plays worker{'s' * (own > 1)} " in described
            if compress is not None:
                # The codes of each worker and of the means, but for its own part, and 32 bytes for each other rank.
                block, of_one, of_means = {
                    "int8": (256, 260, 260),
                    "int4": (256, 132, 132),
                    "topk": (256, 12, 12 * workers),
                    "topk-2bit": (4096, 4 + 64 * 14 // 8, 4 + min(96 * workers, 512) + 16 * workers),
                }[compress]
                blocks = math.ceil(ELEMENTS / fragments / block / ranks) * ranks * fragments
                ideal = blocks * (own * of_one + of_means) * (ranks - 1) / ranks
                assert found == ideal + 32 * fragments * (ranks - 1)
            elif workers % ranks == 0 and ranks in (1, 2, 4, 8):
                ideal = 2 * 4 * ELEMENTS * (ranks - 1) / ranks  # that of an all-reduce
                assert math.isclose(found, ideal + 32 * fragments * (ranks - 1), rel_tol=0.01)


def test_workers_are_dealt_out_in_order_and_evenly():
    for workers in range(1, 20):
        for ranks in range(1, workers + 1):
            allotment = Allotment(workers, ranks)
            dealt = [list(allotment.of(rank)) for rank in range(ranks)]
            assert [worker for own in dealt for worker in own] == list(range(workers))
            assert {len(own) for own in dealt} <= {workers // ranks, -(-workers // ranks)}
            # Their sums are whole subtrees of the tree over all workers, each once.
            nodes = sorted(node for rank in range(ranks) for node in allotment.nodes(rank, FLOAT32))
            assert [b for b, _ in nodes] == [0, *(e for _, e in nodes[:-1])] and nodes[-1][1] == workers


@pytest.mark.parametrize("block", [256, 4096])
def test_every_element_has_one_owner(block):
    for elements in (1, block - 1, block, block + 1, 8 * block - 48):
        for ranks in (1, 2, 3, 7):
            shards = [Allotment(8, ranks, block).shard(rank, elements) for rank in range(ranks)]
            assert {offset % block for offset, length in shards if length} <= {0}
            covered = [at for offset, length in shards for at in range(offset, offset + length)]
            assert covered == list(range(elements)), HERE
