"""`ringdp trace` and `ringdp blame` run a command into their folder, and hand its status on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ringdp.cli.main import main

SCRIPT = "import os, pathlib, sys; pathlib.Path(os.environ['RINGDP_TRACE'], 'seen').write_text('x'); sys.exit({})"

pytestmark = pytest.mark.parametrize("name", ["trace", "blame"])


@pytest.mark.parametrize("folder", ["ringdp-trace", "elsewhere"])
def test_the_command_is_run_and_its_status_handed_on(tmp_path, monkeypatch, capsys, name, folder):
    monkeypatch.chdir(tmp_path)
    named = [] if folder == "ringdp-trace" else [folder]
    assert main([name, *named, "--", sys.executable, "-c", SCRIPT.format(7)]) == 7
    assert Path(folder, "seen").read_text() == "x"
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and folder in said.err


def test_each_run_has_a_folder_of_its_own_and_the_latest_is_read(tmp_path, monkeypatch, capsys, name):
    """But for a folder that was named: its traces are not mixed with others."""
    monkeypatch.chdir(tmp_path)
    Path("ringdp-trace-of-mine").mkdir()
    for number in ("", "-2", "-3"):
        assert main([name, "--", "sh", "-c", 'touch "$RINGDP_TRACE/rank_0"']) == 2
        here = f"ringdp-trace{number}/rank_0 is no trace"
        assert here in capsys.readouterr().err
        assert main([name]) == 2
        assert here in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("*/rank_0")) == ["rank_0"] * 3
    assert main([name, "ringdp-trace", "--", "true"]) == 2
    assert "holds traces of an earlier run" in capsys.readouterr().err


def test_json_leaves_stdout_alone(tmp_path, run_warm, name):
    code = "import sys; print('chatter'); sys.exit(7)"
    result = run_warm("-m", "ringdp", name, str(tmp_path), "--json", "--", sys.executable, "-c", code)
    assert (result.returncode, result.stdout) == (7, "")
    assert result.stderr.startswith("chatter\n")


def test_a_folder_that_is_a_file_is_one_line(capsys, name):
    assert main([name, __file__, "--", "true"]) == 2
    assert capsys.readouterr().err == f"ringdp {name}: {__file__} is no folder for traces: File exists\n"


def test_a_folder_that_is_not_there_names_no_other_command(capsys, name):
    assert main([name, "/no/such"]) == 2
    way_out = "run the job with RINGDP_TRACE=/no/such, or here: -- COMMAND"
    assert capsys.readouterr().err == f"ringdp {name}: there is no folder /no/such: {way_out}\n"


def test_a_command_that_cannot_run_is_one_line(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert main([name, "--", "no-such-program"]) == 2
    assert capsys.readouterr().err == f"ringdp {name}: cannot run no-such-program: No such file or directory\n"
