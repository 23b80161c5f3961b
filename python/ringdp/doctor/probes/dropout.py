"""The generator's state at each dropout, for the first steps: equal states on two ranks drop the same units.

Record dropout: step, call (within the step), name, shape, state.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ringdp.doctor.probes.rig import Rig

_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_STEPS, _CALLS = 4, 8


def install(rig: Rig) -> None:
    """For torch.nn's dropout layers, which call these functions, and for direct calls."""
    calls = _Calls(rig)
    for name in _FUNCTIONS:
        rig.patches.around(functional, name, lambda original, name=name: calls.watched(name, original))
    rig.patches.around(functional, "scaled_dot_product_attention", calls.watched_attention)


class _Calls:
    """Counts the calls of each step."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._step = -1
        self._call = 0

    def watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)  # whether training is the default differs between them

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            if bound.arguments["training"] and bound.arguments["p"] > 0:
                self._note(name, bound.arguments["input"])
            return original(*args, **kwargs)

        return call

    def watched_attention(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(query: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(query, *args, **kwargs)
            if kwargs.get("dropout_p", args[3] if len(args) > 3 else 0.0) > 0:
                self._note("attention", query)
            return original(query, *args, **kwargs)

        return call

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        if self._step != self._rig.step:
            self._step, self._call = self._rig.step, 0
        if self._step < _STEPS and self._call < _CALLS:
            row = {"kind": "dropout", "step": self._step, "call": self._call, "name": name}
            self._rig.write({**row, "shape": list(tensor.shape), "state": _state(tensor.device)})
        self._call += 1


def _state(device: torch.device) -> str:
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return hashlib.sha1(state.numpy().tobytes(), usedforsecurity=False).hexdigest()[:16]
