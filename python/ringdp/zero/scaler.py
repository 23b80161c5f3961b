"""`ringdp.GradScaler`: torch's loss scaling for sharded gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ringdp.zero import registry
from ringdp.zero.optimizer import ZeroOptimizer


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for any zero_stage: from stage 2 on it unscales shards, and all ranks skip a step together.

    unscale_() and step() are collective from stage 2 on. At stages 0 and 1 torch's own does the same, as .grad is whole
    and equal on all ranks.
    """

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        if not isinstance(optimizer, ZeroOptimizer) or optimizer.stage < 2:
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        wrapper: Any = registry.one_wrapper_of(p for group in optimizer.param_groups for p in group["params"])
        # From the buckets, not the gradients: a rank may have no piece of some dtype, or no piece at all.
        if torch.float16 in wrapper.bucket_dtypes() and not allow_fp16:
            raise ValueError("GradScaler: float16 gradients are not unscaled: keep parameters or grad_dtype in float32")
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for gradient in optimizer.shard_grads():
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
        found, inverse = found_inf.to(wrapper.device), inv_scale.to(wrapper.device)
        for gradients in by_dtype.values():
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=optimizer.process_group)
        return {found.device: found}
