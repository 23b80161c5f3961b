"""All kinds of questions, in the order in which help lists them, and their inputs from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringdp.tools.planner import batch, elastic, errata, local, measured, memory, overview, scaling, traffic
from ringdp.tools.planner.question import InputError, Kind


def read(path: Path, kinds: Mapping[str, Kind]) -> dict[str, dict[str, str]]:
    """Inputs as text by kind. InputError names the file and what is wrong in it."""
    tables = _parsed(path)
    found: dict[str, dict[str, str]] = {}
    for name, table in tables.items():
        if name not in kinds:
            raise InputError(f"{path}: invalid table '{name}' (expected one of: {', '.join(kinds)})")
        if not isinstance(table, dict):
            raise InputError(f"{path}: '{name}' must be a table of inputs, as [{name}] in TOML")
        found[name] = {key.replace("-", "_"): _text(path, name, key, value) for key, value in table.items()}
    if not found:
        raise InputError(f"{path}: has no table; write one, as [step] and below it params = '70B'")
    return found


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--file {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        parsed = json.loads(text) if path.suffix == ".json" else _toml(path, text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--file {path}: {str(error).splitlines()[0]}") from None
    if not isinstance(parsed, dict):
        raise InputError(f"--file {path}: must be an object with a table for each kind")
    return parsed


def _toml(path: Path, text: str) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:
        raise InputError(f"--file {path}: TOML needs Python 3.11; write it as JSON, named .json") from None
    return tomllib.loads(text)


def _text(path: Path, kind: str, key: str, value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, int | float | str) for word in value):
        return ",".join(str(word) for word in value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{path}: {kind}.{key} must be a number or text, as 8 or '70B'")
    return str(value)


_MODULES = (overview, batch, memory, traffic, scaling, elastic, local, errata, measured)

KINDS: dict[str, Kind] = {kind.name: kind for module in _MODULES for kind in module.KINDS}
