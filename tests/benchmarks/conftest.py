"""Compiles the C half of the runner, once for all workers and sessions."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def native():
    """The library of native.c."""
    from runner.native import SOURCE, compile_native, load_native

    folder = ROOT / "build" / f"runner-native-{SOURCE.stat().st_mtime_ns}"  # another text has another folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        library = folder / "native.so"
        return load_native(library if library.exists() else compile_native(folder))
