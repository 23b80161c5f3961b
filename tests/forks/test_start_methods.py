"""Ranks started by fork, spawn and forkserver."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("start_script.py")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ranks_of_every_start_method(run_python, method):
    result = run_python(str(SCRIPT), method)
    assert result.returncode == 0, result.stderr
