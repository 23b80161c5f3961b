"""Loads ringdp._C, or says in one sentence why it cannot be used and what to type.

An extension over torch's C++ classes works in one minor release of torch only, and fails in another with an
undefined symbol. What it was built for is therefore in a file beside it, read first.
"""

from __future__ import annotations

import functools
import importlib
import json
from pathlib import Path
from types import ModuleType

_RECORD = Path(__file__).with_name("_built.json")
_REBUILD = "run `pip install --no-build-isolation --force-reinstall .` in ringdp's source folder"


def built_for() -> dict[str, str | None]:
    """What the extension was built for: torch, python, compiler, cuda (None: without), date. Empty when not built."""
    try:
        return json.loads(_RECORD.read_text())
    except FileNotFoundError:
        return {}


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def mismatch(built: str, found: str) -> str | None:
    """The sentence for an extension built for torch `built` where `found` is installed; None when they fit."""
    if _minor(built) == _minor(found):
        return None
    wanted = ".".join(_minor(built))
    return (
        f"ringdp was built for torch {wanted} but torch {found} is installed: install ringdp's wheel for this torch or "
        f"`pip install 'torch=={wanted}.*'`; from source, {_REBUILD}"
    )


@functools.cache
def load() -> ModuleType:
    """The module ringdp._C, looked up once. ImportError with what to type when torch or the extension is not fit."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("ringdp needs torch: `pip install torch==2.13.0`, then build ringdp against it") from error
    record = built_for()
    if not record:
        raise ImportError(f"ringdp's extension is not built here: {_REBUILD}")
    sentence = mismatch(record["torch"], torch.__version__)
    if sentence is not None:
        raise ImportError(sentence)
    try:
        return importlib.import_module("ringdp._C")
    except ImportError as error:
        built = f"torch {record['torch']} and Python {record['python']}"
        raise ImportError(f"ringdp's extension, built for {built}, does not load ({error}): {_REBUILD}") from error
