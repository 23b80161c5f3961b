"""`ringdp.clip_grad_norm_`: the same bits at every number of ranks, at every stage, and in one process.

A parameter is cut into blocks of fixed size in memory order. A block's squares are added up in float64 in a fixed order
(on devices: in torch's), and the sums of all blocks exactly, rounded once (math.fsum). Shards cut parameters only
between blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from ringdp import _native
from ringdp.zero import registry
from ringdp.zero.flat import Piece, in_memory_order

_C = _native.load()
_EPSILON = 1e-6  # torch's


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """torch.nn.utils.clip_grad_norm_ for any zero_stage; returns the norm before clipping (0-dim, float32, CPU).

    Collective from stage 2 on, where it scales the shards. ValueError if norm_type is not 2. RuntimeError if the norm
    is not finite and `error_if_nonfinite` is set, before anything is written.
    """
    if float(norm_type) != 2.0:
        raise ValueError(
            f"clip_grad_norm_: norm_type={norm_type}, must be 2; for others use torch.nn.utils.clip_grad_norm_"
        )
    whole, wrappers = _sorted_out([parameters] if torch.is_tensor(parameters) else list(parameters))
    terms: list[float] = []
    for gradient in whole:
        terms.extend(_C.block_squares(gradient).tolist())
    shards: list[torch.Tensor] = []
    for wrapper, wanted in wrappers:
        mine = _own_gradients(wrapper, wanted)
        terms.extend(_terms_of_all_ranks(wrapper, mine))
        shards.extend(mine)
    norm = _root(terms)
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(
            f"clip_grad_norm_: the norm of the gradients is {norm}: nothing is clipped. Skip this step, or pass "
            "error_if_nonfinite=False"
        )
    factor = min(1.0, max_norm / (norm + _EPSILON)) if not math.isnan(norm) else math.nan
    for gradient in (*whole, *shards):
        gradient.mul_(factor)
    return torch.tensor(norm, dtype=torch.float32)


def _sorted_out(
    parameters: list[torch.Tensor],
) -> tuple[list[torch.Tensor], list[tuple[Any, set[int]]]]:
    """Flat views of whole gradients; and wrappers with sharded gradients, with the ids of their parameters."""
    whole: list[torch.Tensor] = []
    wrappers: dict[int, tuple[Any, set[int]]] = {}
    for parameter in dict.fromkeys(parameters):
        wrapper = registry.wrapper_of(parameter)
        if wrapper is not None and wrapper.zero_stage >= 2:
            wrapper.check_keeps_gradients("clip_grad_norm_")
            wrappers.setdefault(id(wrapper), (wrapper, set()))[1].add(id(parameter))
        elif parameter.grad is not None:
            whole.append(_flat_view(parameter))
    return whole, list(wrappers.values())


def _flat_view(parameter: torch.Tensor) -> torch.Tensor:
    """A flat view of a parameter's gradient in the parameter's memory order, after a copy if its layout differs."""
    flat = in_memory_order(parameter.grad, parameter)
    if flat.data_ptr() != parameter.grad.data_ptr():
        laid_out = torch.empty_strided(
            parameter.shape, parameter.stride(), dtype=parameter.grad.dtype, device=parameter.grad.device
        )
        parameter.grad = laid_out.copy_(parameter.grad)
        flat = in_memory_order(parameter.grad, parameter)
    return flat


def _own_gradients(wrapper: Any, wanted: set[int]) -> list[torch.Tensor]:
    """This rank's pieces of the gradients of these parameters."""
    reducer = wrapper.reducer
    shards, used = reducer.shards(), reducer.stand_ins.kept(reducer.used())
    pieces = [Piece(*facts) for facts in wrapper.shard_layout().pieces(wrapper.process_group.rank())]
    return [
        shards[piece.bucket][piece.place]
        for piece in pieces
        if shards[piece.bucket] is not None
        and used[piece.parameter]
        and id(reducer.parameters[piece.parameter]) in wanted
    ]


def _terms_of_all_ranks(wrapper: Any, mine: list[torch.Tensor]) -> list[float]:
    """The block sums of all ranks, in any order, because they are added up exactly."""
    group, device = wrapper.process_group, wrapper.device  # the group may have no backend for others
    own = torch.cat([torch.empty(0, dtype=torch.float64, device=device), *map(_C.block_squares, mine)])
    most = torch.tensor([own.numel()], device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    padded = torch.zeros(int(most), dtype=torch.float64, device=device)
    padded[: own.numel()] = own
    by_rank = [torch.empty_like(padded) for _ in range(group.size())]
    dist.all_gather(by_rank, padded, group=group)
    return torch.cat(by_rank).tolist()


def _root(terms: list[float]) -> float:
    if any(map(math.isnan, terms)):
        return math.nan
    try:
        return math.sqrt(math.fsum(terms))
    except OverflowError:
        return math.inf
