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


def test_a_command_that_cannot_run_is_one_line(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert main([name, "--", "no-such-program"]) == 2
    assert capsys.readouterr().err == f"ringdp {name}: cannot run no-such-program: No such file or directory\n"
