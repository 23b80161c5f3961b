"""A backend of torch.distributed whose all_reduce is wrong in its last element: gloo, and then some."""

from __future__ import annotations

import torch.distributed as dist

NAME = "broken"
_all_reduce = dist.all_reduce


def _make(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _damaging_all_reduce(tensor, *args, **kwargs):
    result = _all_reduce(tensor, *args, **kwargs)
    if dist.get_backend(kwargs.get("group")) == NAME:
        tensor.view(-1)[-1] += 1
    return result


dist.Backend.register_backend(NAME, _make, devices=["cpu"])
dist.all_reduce = _damaging_all_reduce
