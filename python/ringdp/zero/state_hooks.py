"""The hooks of torch's optimizers on state dicts, around those of a `ZeroOptimizer`, which holds shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

StateDict = dict[str, Any]


def saved(optimizer: Optimizer, state_dict: StateDict) -> StateDict:
    """What state_dict() returns after the hooks, which may replace it or change its first level."""
    for before in optimizer._optimizer_state_dict_pre_hooks.values():
        before(optimizer)
    result = dict(state_dict)
    for after in optimizer._optimizer_state_dict_post_hooks.values():
        replaced = after(optimizer, result)
        result = result if replaced is None else replaced
    return result


def load(optimizer: Optimizer, state_dict: StateDict, take: Callable[[StateDict], None]) -> None:
    """Calls `take` with what the hooks make of the dict; torch's own load_state_dict() runs no hooks in it."""
    result = dict(state_dict)
    before, after = optimizer._optimizer_load_state_dict_pre_hooks, optimizer._optimizer_load_state_dict_post_hooks
    for hook in before.values():
        replaced = hook(optimizer, result)
        result = result if replaced is None else replaced
    optimizer._optimizer_load_state_dict_pre_hooks = type(before)()
    optimizer._optimizer_load_state_dict_post_hooks = type(after)()
    try:
        take(result)
    finally:
        optimizer._optimizer_load_state_dict_pre_hooks = before
        optimizer._optimizer_load_state_dict_post_hooks = after
    for hook in after.values():
        hook(optimizer)
