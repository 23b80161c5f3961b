"""DataLoader workers that are forked off a rank with live groups, while collectives run."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
import torch.distributed as dist
from ranks import HERE

ROWS, BATCH, WORKERS, EPOCHS = 24, 4, 2, 3


class Rows(torch.utils.data.Dataset):
    """Row i is full of i, and of the pid of who made it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        worker = torch.utils.data.get_worker_info()
        return torch.full((1000,), float(index)), -1 if worker is None else worker.id


def epochs(persistent: bool) -> tuple[set[int], list[float]]:
    """On a rank: which workers made rows, and the sums over ranks of what every batch held."""
    # The ranks of these tests are daemons, which Python would not let have children.
    multiprocessing.current_process()._config["daemon"] = False
    loader = torch.utils.data.DataLoader(
        Rows(), BATCH, num_workers=WORKERS, multiprocessing_context="fork", persistent_workers=persistent
    )
    makers, sums = set(), []
    running = torch.ones(1 << 20)
    for _ in range(EPOCHS):
        # Workers are forked at the start of an epoch: while this collective is under way.
        work = dist.all_reduce(running, async_op=True)
        for rows, workers in loader:
            makers.update(workers.tolist())
            total = rows.sum(dtype=torch.float64) * (HERE.rank + 1)
            dist.all_reduce(total)
            sums.append(total.item())
        work.wait()
    assert torch.equal(running, torch.full_like(running, float(HERE.size**EPOCHS)))
    return makers, sums


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_come_and_go_while_ranks_communicate(make_world, persistent):
    per_batch = [1000.0 * sum(range(first, first + BATCH)) for first in range(0, ROWS, BATCH)]
    for makers, sums in make_world(2).run(epochs, persistent):
        assert makers == set(range(WORKERS))
        assert sums == [3.0 * batch for batch in per_batch] * EPOCHS
