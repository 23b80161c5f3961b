"""Counts the parameters that modules of this process get, so that a wrapper notices those that come after it."""

from __future__ import annotations

import functools

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

_count = 0


def count() -> int:
    """How many since the first call: by assignment, register_parameter() or load_state_dict(assign=True)."""
    _install()
    return _count


@functools.cache
def _install() -> None:
    register_module_parameter_registration_hook(_registered)


def _registered(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
    del module, name, parameter
    global _count
    _count += 1
