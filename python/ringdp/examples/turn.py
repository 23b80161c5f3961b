"""Work that only rank 0 does. The others wait beside the process group: no collective has to wait for a slow rank."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist

LIMIT_S = 1800.0
LOOK_EVERY_S = 0.02


def on_rank_zero(name: str, work: Callable[[], str]) -> str:
    """Every rank returns what `work` gave on rank 0. One `name` for each call in the life of a process group.

    Raises TimeoutError where rank 0 has not finished after LIMIT_S seconds.
    """
    store, key = dist.distributed_c10d._get_default_store(), f"on_rank_zero/{name}"
    if dist.get_rank() == 0:
        result = work()
        store.set(key, result)
        return result
    deadline = time.monotonic() + LIMIT_S
    # Looking instead of blocking inside the store leaves signals a chance.
    while not store.check([key]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 has not finished '{name}' after {LIMIT_S:.0f} s")
        time.sleep(LOOK_EVERY_S)
    return str(store.get(key).decode())
