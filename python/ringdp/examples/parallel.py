"""The wrapper of a run: ringdp's DistributedDataParallel, or torch's own."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock

import ringdp

KINDS = ("ringdp", "stock")


def data_parallel(model: nn.Module, kind: str, group: dist.ProcessGroup | None = None) -> Stock:
    """`model` behind the class of that kind, with gradients as views of its buckets. Collective."""
    cls = ringdp.DistributedDataParallel if kind == "ringdp" else Stock
    return cls(model, process_group=group, gradient_as_bucket_view=True)


def name_of(kind: str) -> str:
    """For titles."""
    return "ringdp's DDP" if kind == "ringdp" else "stock DDP"
