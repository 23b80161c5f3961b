"""Unequal numbers of samples: gradients of summed losses, divided once by all ranks' samples (or tokens)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

# Number of weighted backward passes that this process has begun; `ringdp audit` reads it.
passes = 0
_Place = tuple[int, int, int]  # a parameter with a gradient, the memory of that, its version: changes raise it


class Weights:
    """Counts the samples of this rank's micro-batches since the last synchronised step."""

    def __init__(self) -> None:
        self._pending = 0.0
        self._added: list[_Place] = []  # where the last pass that was not synchronised has left gradients
        self._mean: list[_Place] = []  # where the last synchronised pass has left one

    def backward(self, ddp: Any, loss: torch.Tensor | None, weight: float) -> None:
        """`loss`: summed over `weight` samples; None if the rank has none. Under no_sync nothing is communicated."""
        global passes
        passes += 1
        if ddp._delay_all_reduce_params:
            raise ValueError("DistributedDataParallel.backward: no weight with delay_all_reduce_named_params")
        synchronised = ddp.reducer.expects_gradients()  # whether the forward pass was
        if loss is None:
            synchronised |= ddp.require_backward_grad_sync
        _check(ddp, loss, weight, synchronised)
        if self._are_thrown_away(ddp):
            self._pending = 0.0  # with their samples
            self._mean = []
        if synchronised:
            self._refuse_to_average_again(ddp)
        total = self._pending + weight
        if synchronised:
            self._start_weight_sum(ddp, loss, total)
        if loss is not None:
            loss.backward()
        elif synchronised:
            ddp.reducer.backward_without_loss()
        self._pending = 0.0 if synchronised else total
        self._added = [] if synchronised else _places(ddp)
        self._mean = _places_of_mean(ddp) if synchronised else self._mean

    def _are_thrown_away(self, ddp: Any) -> bool:
        """Whether zero_grad() was called since the last pass; with set_to_none=False gradients have changed, to 0."""
        left = [p.grad for p in ddp.reducer.parameters if p.grad is not None]
        if not left or not self._pending:
            return not left
        return not set(self._added) & set(_places(ddp)) and not any(bool(gradient.any()) for gradient in left)

    def _refuse_to_average_again(self, ddp: Any) -> None:
        """Below stage 2 a pass averages what is in .grad, and a mean there would be weighed anew."""
        if self._mean and self._mean == _places_of_mean(ddp):
            raise ValueError(
                "DistributedDataParallel.backward: a weight, and .grad still has the mean of an earlier backward pass, "
                "whose weight is another: call zero_grad() between, or run all passes of a step but the last one under "
                "no_sync()"
            )

    def _start_weight_sum(self, ddp: Any, loss: torch.Tensor | None, own: float) -> None:
        """Sums all ranks' weights while gradients are computed; the first complete bucket waits for the sum."""
        if loss is None and not ddp.reducer.expects_gradients():
            _match_forward(ddp)
        total = torch.tensor([own], dtype=torch.float64, device=ddp.device)
        ddp.reducer.set_divisor_work(dist.all_reduce(total, group=ddp.process_group, async_op=True))


def _places_of_mean(ddp: Any) -> list[_Place]:
    if ddp.zero_stage >= 2:
        return []
    return _places(ddp)


def _places(ddp: Any) -> list[_Place]:
    found = ((number, parameter.grad) for number, parameter in enumerate(ddp.reducer.parameters))
    return [(n, _address(gradient), gradient._version) for n, gradient in found if gradient is not None]


def _address(gradient: torch.Tensor) -> int:
    return (gradient._values() if gradient.is_sparse else gradient).data_ptr()


def _check(ddp: Any, loss: torch.Tensor | None, weight: float, synchronised: bool) -> None:
    if not (weight >= 0 and math.isfinite(weight)):
        raise ValueError(f"DistributedDataParallel.backward: weight={weight}, must be the number of samples, 0 or more")
    if loss is None and weight != 0:
        raise ValueError(f"DistributedDataParallel.backward: weight={weight} without a loss, must be 0")
    if ddp.reducer.has_hook:
        raise ValueError("DistributedDataParallel.backward: a communication hook divides by itself: no weight with it")
    if ddp._join_config.enable:
        raise ValueError(
            "DistributedDataParallel.backward: no weight under join(): "
            "ranks that have run out of samples call backward(None, weight=0) instead"
        )
    if loss is None and synchronised:
        _check_without_loss(ddp)


def _check_without_loss(ddp: Any) -> None:
    """Before this rank takes part in any collective of the step."""
    if ddp.sharded_model is not None:
        raise NotImplementedError(
            "DistributedDataParallel.backward: no loss at zero_stage=3, where all ranks must take part in gathering "
            "parameters: run the model on a batch of 0 samples, and call backward(loss, weight=0)"
        )
    if ddp.reducer.is_static_graph_first_pass():
        raise RuntimeError(
            "DistributedDataParallel.backward: static_graph=True learns the graph from the first synchronised backward "
            "pass: in that step every rank needs a loss"
        )
    if getattr(ddp, "skip_all_reduce_unused_params", False):
        raise ValueError(
            "DistributedDataParallel.backward: a rank without a loss does not know which buckets the others skip: "
            "leave skip_all_reduce_unused_params out"
        )


def _match_forward(ddp: Any) -> None:
    """Takes part in the collectives of the others' forward pass, on a rank without inputs."""
    optimizer = ddp._live_optimizer()
    if optimizer is not None:
        optimizer.wait()  # as a forward pass does
    devices, ddp.device_ids = ddp.device_ids, None  # there are no inputs to move
    try:
        ddp._pre_forward()
    finally:
        ddp.device_ids = devices
    if ddp._check_sync_bufs_post_fwd():
        ddp._sync_buffers()
    ddp.require_forward_param_sync = True
    ddp.reducer.prepare_for_backward([])
