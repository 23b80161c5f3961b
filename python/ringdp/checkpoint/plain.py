"""Python values as JSON, without loss: types, -0.0 and NaN are kept.

Values that JSON does not have are written as {"~": type, "is": value}: tuples, sets, bytes, dicts whose keys are not
strings, OrderedDict, Counter, complex numbers, tensors, numpy arrays and scalars. Anything else is pickled, and read
only with allow_pickle=True, because a pickle can run any code when it is read.
"""

from __future__ import annotations

import base64
import io
import pickle
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from ringdp.checkpoint.piece import CheckpointError

_TAG, _IS = "~", "is"


def encode(value: Any) -> Any:
    """A value for json.dumps. CheckpointError names the type of a value that cannot be pickled."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [encode(item) for item in value]
    if kind is dict and all(type(key) is str for key in value) and _TAG not in value:
        return {key: encode(item) for key, item in value.items()}
    if kind in _MAPPINGS:
        return _tagged(kind.__name__, [[encode(key), encode(item)] for key, item in value.items()])
    if kind in _SEQUENCES:
        return _tagged(kind.__name__, [encode(item) for item in value])
    if kind is complex:
        return _tagged("complex", [value.real, value.imag])
    if kind is bytes:
        return _tagged("bytes", _text(value))
    if kind is torch.Tensor:
        return _tagged("tensor", _text(_torch_bytes(value)))
    if (array := _from_numpy(value)) is not None:
        return _tagged("array" if array[0] else "scalar", _text(_torch_bytes(array[1])))
    return _tagged("pickle", _text(_pickled(value)))


def decode(value: Any, *, allow_pickle: bool = False) -> Any:
    """The value that was given to `encode`. CheckpointError for a pickle that is not allowed, or an unknown tag."""
    if isinstance(value, list):
        return [decode(item, allow_pickle=allow_pickle) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: decode(item, allow_pickle=allow_pickle) for key, item in value.items()}
    tag, inner = value[_TAG], value.get(_IS)
    if tag == "pickle":
        if not allow_pickle:
            raise CheckpointError(
                "a value in it was stored as a pickle, which runs code when it is read: pass allow_pickle=True if you "
                "trust the file, or save plain Python values, tensors or numpy arrays instead"
            )
        return pickle.loads(base64.b64decode(inner))
    if tag not in _READERS:
        raise CheckpointError(f"a value in it has the unknown type {tag!r}")
    return _READERS[tag](inner, lambda item: decode(item, allow_pickle=allow_pickle))


_SEQUENCES = (tuple, set, frozenset)
_MAPPINGS = (dict, OrderedDict, Counter)
_READERS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    **{kind.__name__: (lambda inner, deep, kind=kind: kind(deep(item) for item in inner)) for kind in _SEQUENCES},
    **{
        kind.__name__: (lambda inner, deep, kind=kind: kind({deep(key): deep(item) for key, item in inner}))
        for kind in _MAPPINGS
    },
    "complex": lambda inner, _: complex(*inner),
    "bytes": lambda inner, _: base64.b64decode(inner),
    "tensor": lambda inner, _: _tensor(inner),
    "array": lambda inner, _: _tensor(inner).numpy(),
    "scalar": lambda inner, _: _tensor(inner).numpy()[()],
}


def _tagged(tag: str, inner: Any) -> dict[str, Any]:
    return {_TAG: tag, _IS: inner}


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _from_numpy(value: Any) -> tuple[bool, torch.Tensor] | None:
    """(whether it is an array, its copy) of a numpy array or scalar that torch can carry."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        return None
    try:
        return type(value) is numpy.ndarray, torch.from_numpy(numpy.array(value))
    except (TypeError, ValueError):
        return None


def _torch_bytes(tensor: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    torch.save(tensor.detach().cpu().clone(), buffer)
    return buffer.getvalue()


def _tensor(inner: str) -> torch.Tensor:
    return torch.load(io.BytesIO(base64.b64decode(inner)), weights_only=True)


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise CheckpointError(
            f"a {type(value).__qualname__} cannot be stored ({error}): use plain Python values"
        ) from error
