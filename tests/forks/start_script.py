"""start_script.py METHOD: two ranks by this start method of multiprocessing, from a parent that has imported torch."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile

import ringdp
import torch
import torch.distributed as dist


def rank_of_two(rank: int, store: str) -> None:
    """One rank."""
    dist.init_process_group("ringdp", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((1000,), 3.0))
    dist.destroy_process_group()


def start_rank(rank: int, store: str) -> None:
    """The first code of a rank: what the parent registered is inherited by fork only."""
    ringdp.register()
    rank_of_two(rank, store)


def main(method: str) -> int:
    """0 when both ranks end well."""
    ringdp.register()
    context = multiprocessing.get_context(method)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(rank, os.path.join(folder, "store")) for rank in range(2)]
        processes = [context.Process(target=start_rank, args=pair) for pair in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return int(any(process.exitcode for process in processes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
