"""Fixtures for every test: an interpreter of its own, for what happens once per process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

LIMIT_S = 120

# What a developer has measured must not change what tests count.
os.environ["RINGDP_TUNE"] = "off"


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_python(code, NAME=value, ...) or run_python("-m", "module", ...): a fresh interpreter's result.

    The RINGDP_ variables of this environment are not handed on; the keyword arguments are added.
    """

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RINGDP_")}
        command = [sys.executable, *(arguments if len(arguments) > 1 else ("-c", *arguments))]
        env = {**inherited, "RINGDP_TUNE": "off", **variables}
        try:
            return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired as late:
            said = [(stream or b"").decode(errors="replace") for stream in (late.stdout, late.stderr)]
            raise AssertionError(f"not done after {LIMIT_S} s, having said: {said}") from None

    return run
