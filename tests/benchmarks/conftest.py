"""Makes the packages of benchmarks/ importable, and compiles the C half of a race once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    """The library of native.c."""
    from race.native import compile_native, load_native

    return load_native(compile_native(tmp_path_factory.mktemp("native")))
