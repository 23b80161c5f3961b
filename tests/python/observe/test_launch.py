"""A command runs with the folder in its environment, and its status comes back."""

from __future__ import annotations

import sys

import pytest
from ringdp.attach import job
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


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    for folder in ("file", "file/below"):
        with pytest.raises(TraceError, match=f"{folder} is no folder for traces: "):
            run_traced(["true"], tmp_path / folder)


def test_what_it_leaves_running_is_ended_and_a_signal_is_128_more(tmp_path):
    said = tmp_path / "said"
    code = (
        "import os, pathlib, subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); "
        f"pathlib.Path({str(said)!r}).write_text(os.environ[{job.VARIABLE!r}]); os.kill(os.getpid(), 9)"
    )
    assert run_traced([sys.executable, "-c", code], tmp_path) == 137
    assert job.marked(said.read_text()) == []


def test_what_cannot_run_is_named(tmp_path):
    with pytest.raises(TraceError, match="cannot run no-such-program: No such file"):
        run_traced(["no-such-program"], tmp_path)
