"""A command runs with the folder in its environment, and its status comes back."""

from __future__ import annotations

import sys

import pytest
from ringdp.observe.dump import TraceError
from ringdp.observe.launch import run_traced

SCRIPT = "import os, pathlib, sys; pathlib.Path(os.environ['RINGDP_TRACE'], 'rank_0').write_text('x'); sys.exit(7)"


def test_the_command_knows_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from pathlib import Path

    assert run_traced([sys.executable, "-c", SCRIPT], Path("traces")) == 7
    assert (tmp_path / "traces" / "rank_0").read_text() == "x"
    with pytest.raises(TraceError, match="holds traces of an earlier run"):
        run_traced([sys.executable, "-c", SCRIPT], Path("traces"))


def test_what_cannot_run_is_named(tmp_path):
    with pytest.raises(TraceError, match="cannot run no-such-program: No such file"):
        run_traced(["no-such-program"], tmp_path)
