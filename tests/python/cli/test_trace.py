"""`ringdp trace`: one file of all ranks, by folder or by running a command; what is wrong is one line."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from made_up import Run, as_file
from ringdp.cli.main import main

WRITES = """
import os, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from made_up import Run, as_file
for dump in Run(ranks=2, steps=3).dumps():
    as_file(dump, Path(os.environ["RINGDP_TRACE"]))
sys.exit({status})
"""


@pytest.fixture
def traces(tmp_path):
    for dump in Run(ranks=2, steps=3).dumps():
        as_file(dump, tmp_path)
    return tmp_path


def script(status):
    folder = str(Path(__file__).resolve().parents[1] / "tools" / "observe")
    return [sys.executable, "-c", WRITES.format(folder=folder, status=status)]


def test_a_folder_is_merged(traces, capsys):
    assert main(["trace", str(traces)]) == 0
    said = capsys.readouterr().out
    assert str(traces / "trace.json") in said and "2 ranks" in said and "ui.perfetto.dev" in said
    merged = json.loads((traces / "trace.json").read_text())
    assert {event["pid"] for event in merged["traceEvents"]} == {0, 1}


def test_json_and_gzip(traces, tmp_path, capsys):
    output = tmp_path / "run.json.gz"
    assert main(["trace", str(traces), "-o", str(output), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["output"] == str(output) and report["ranks"] == [0, 1] and report["missing"] == []
    assert len(json.loads(gzip.decompress(output.read_bytes()))["traceEvents"]) == report["events"]


def test_a_rank_that_left_nothing_is_named(traces, capsys):
    (traces / "rank_0").unlink()
    assert main(["trace", str(traces)]) == 0
    assert "no trace of ranks [0]" in capsys.readouterr().out


@pytest.mark.parametrize("status", [0, 3])
def test_a_command_is_run_and_its_status_handed_on(tmp_path, monkeypatch, capsys, status):
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "--", *script(status)]) == status
    assert (tmp_path / "ringdp-trace" / "trace.json").exists()


def test_an_empty_folder_is_one_line(tmp_path, capsys):
    assert main(["trace", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "RINGDP_TRACE=" in said.err


def test_an_output_that_cannot_be_written_is_one_line(traces, capsys):
    assert main(["trace", str(traces), "-o", "/dev/null/x.json"]) == 2
    assert "/dev/null/x.json" in capsys.readouterr().err
