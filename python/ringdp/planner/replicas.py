"""What torch's DistributedDataParallel does when it is built, by threads over gloo: no process, no wrapper."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_LIMIT = timedelta(seconds=20)


def built(parameters: Sequence[Tensor]) -> list[Tensor | str]:
    """By rank: its parameter after the constructor's two steps, or why it was refused. parameters: one of each rank."""
    import torch.distributed as dist

    store = dist.HashStore()

    def construct(rank: int) -> Tensor | str:
        own = parameters[rank].clone()
        group = dist.ProcessGroup(store, rank, len(parameters))
        try:
            gloo = dist.ProcessGroupGloo(store, rank, len(parameters), _LIMIT)
        except (AttributeError, RuntimeError) as error:
            raise ImportError(f"gloo does not start: {str(error).splitlines()[0]}") from None
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        group._register_backend(own.device, dist.ProcessGroup.BackendType.GLOO, gloo)
        try:
            dist._verify_params_across_processes(group, [own], None)
            dist._broadcast_coalesced(group, [own], own.nbytes, 0)
        except RuntimeError as error:
            return str(error)  # not the error, which would keep the group that the other rank waits for
        return own

    with ThreadPoolExecutor(len(parameters)) as pool:
        return list(pool.map(construct, range(len(parameters))))
