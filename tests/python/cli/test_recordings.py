"""Commands that read what a run has left behind: ringdp blame, trace and report."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from example_run import run
from made_up import Run, as_file
from ringdp.cli.main import main
from ringdp.tools.pages.run_file import figures


def left_by(run, folder):
    for dump in run.dumps():
        as_file(dump, folder)
    return str(folder)


SLOW = Run(ranks=3, compute=lambda rank, step: 10 + 200 * (rank == 2))


def test_the_finding_names_rank_cause_and_cost(tmp_path, capsys):
    assert main(["blame", left_by(SLOW, tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "compute" in said and "Rank 2 came last 19 of 19 times" in said
    assert "200.0 ms more" in said and "% of the time" in said


def test_json_has_every_field(tmp_path, capsys):
    assert main(["blame", left_by(SLOW, tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (finding,) = report["findings"]
    assert finding["cause"] == "compute" and finding["ranks"] == [2]
    assert finding["seconds"] == pytest.approx(19 * 0.2, rel=0.01)
    assert finding["share"] == pytest.approx(finding["seconds"] / report["seconds"])


def test_nothing_to_blame_is_said(tmp_path, capsys):
    assert main(["blame", left_by(Run(ranks=2), tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Nothing to blame in 19 collectives and 19 steps")


def test_a_missing_rank_is_one_line(tmp_path, refusal):
    folder = left_by(SLOW, tmp_path)
    (tmp_path / "rank_1").unlink()
    assert "no trace of ranks [1]" in refusal("blame", folder)


# `ringdp trace`: one file of all ranks, by folder or by running a command; what is wrong is one line.

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


def test_an_empty_folder_is_one_line(tmp_path, refusal):
    assert "RINGDP_TRACE=" in refusal("trace", str(tmp_path))


def test_an_output_that_cannot_be_written_is_one_line(traces, refusal):
    assert "/dev/null/x.json" in refusal("trace", str(traces), "-o", "/dev/null/x.json")


# `ringdp report`: from a run's JSON to a page, and one line for everything else.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "run.json"
    made.write_text(json.dumps(run()))
    return made


def test_the_page_lies_next_to_the_run(file: Path, capsys: Any) -> None:
    assert main(["report", str(file)]) == 0
    page = file.with_suffix(".html")
    assert capsys.readouterr().out.startswith(f"{page}: ")
    assert "A run of 3 steps on 2 ranks" in page.read_text()


def test_the_page_can_lie_elsewhere(file: Path, tmp_path: Path) -> None:
    assert main(["report", str(file), "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").is_file() and not file.with_suffix(".html").exists()


def test_a_file_that_is_no_run_is_one_line(file: Path, refusal: Any) -> None:
    file.write_text("{}")
    said = f"ringdp report: {file} is not a report of a run: it has no origin.began; ringdp.RunLog "
    assert refusal("report", str(file)).startswith(said)
    assert not file.with_suffix(".html").exists()


def test_a_missing_file_is_one_line(tmp_path: Path, refusal: Any) -> None:
    said = f"ringdp report: cannot read {tmp_path}/none.json: No such file or directory\n"
    assert refusal("report", str(tmp_path / "none.json")) == said


def test_json_has_the_page_s_figures_and_writes_no_page(file: Path, capsys: Any) -> None:
    assert main(["report", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == figures(run())
    assert not file.with_suffix(".html").exists()


def test_torch_is_not_needed(file: Path, run_python: Any) -> None:
    code = f"import sys; sys.modules['torch'] = None\nfrom ringdp.cli import main\nmain.main(['report', {str(file)!r}])"
    result = run_python(code)
    assert result.returncode == 0, result.stderr
