"""`ringdp run`: real ranks of a program that says gloo, with and without torch's help."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).with_name("plain_script.py"))
RUN = ["-m", "ringdp", "run", "--as", "gloo", "--standalone", "--nproc-per-node=2"]
LINE = "ringdp: RINGDP_AS=gloo: groups whose backend is gloo run over ringdp"


@pytest.mark.parametrize("autoload", ["0", pytest.param("1", marks=pytest.mark.long)])
def test_a_program_that_says_gloo_runs_over_ringdp(run_warm, autoload):
    result = run_warm(*RUN, SCRIPT, "gloo", TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert result.returncode == 0, result.stderr
    assert "gradient [1.5, 1.5, 1.5] over ringdp" in result.stdout
    assert result.stderr.count(LINE) == 1


@pytest.mark.long
def test_the_variable_alone_reaches_what_mp_spawn_starts(run_python, tmp_path):
    result = run_python(SCRIPT, "gloo", str(tmp_path / "store"), RINGDP_AS="gloo")
    assert result.returncode == 0, result.stderr
    assert "gradient [1.5, 1.5, 1.5] over ringdp" in result.stdout
    assert result.stderr.count(LINE) == 1


@pytest.mark.long
@pytest.mark.parametrize("tool", ["audit", "doctor", "trace"])
def test_tools_watch_it(run_warm, tmp_path, monkeypatch, tool):
    """The script has no DataLoader and no step: audit and doctor say so, which they can where they are attached."""
    monkeypatch.chdir(tmp_path)
    result = run_warm("-m", "ringdp", tool, "--", sys.executable, *RUN, SCRIPT, "gloo")
    shown = "no problems: 2 ranks" if tool == "doctor" else "gradient [1.5, 1.5, 1.5] over ringdp"
    assert shown in result.stdout + result.stderr
    assert "must be installed in the Python" not in result.stderr
    if tool == "trace":
        assert sorted(file.name for file in tmp_path.glob("ringdp-trace/rank_*")) == ["rank_0", "rank_1"]


def test_a_program_that_fails_fails_torchrun_s_way(run_warm, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import sys; sys.exit(7)")
    result = run_warm("-m", "ringdp", "run", "--standalone", "--nproc-per-node=1", str(script))
    assert result.returncode == 1
    assert "ChildFailedError" in result.stderr
    assert "exitcode  : 7" in result.stderr
