"""Commands that run a job: its command line, the folder of its records or traces, and its status handed on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ringdp.cli import jobs
from ringdp.cli.jobs import run_traced
from ringdp.cli.main import main, parse
from ringdp.tools.attach import job


def parsed(*arguments):
    return parse(["audit", *arguments])


def test_everything_behind_the_dashes_is_the_job_s():
    options = parsed("--fail", "--", "torchrun", "--nproc-per-node", "2", "train.py", "--fail", "--", "x")
    assert options.fail
    assert jobs.job_of(options) == ["torchrun", "--nproc-per-node", "2", "train.py", "--fail", "--", "x"]
    assert jobs.job_of(parsed()) == []


def test_a_command_without_dashes_is_refused_by_name():
    with pytest.raises(ValueError, match="'torchrun': put -- before"):
        jobs.job_of(parsed("torchrun", "train.py"))


def test_a_private_folder_is_gone_afterwards_and_a_named_one_stays(tmp_path):
    with jobs.assignment_in(None, "audit") as private:
        assert private.folder.is_dir() and private.tool == "audit"
    assert not private.folder.exists()
    with jobs.assignment_in(str(tmp_path / "a" / "b"), "audit") as kept:
        pass
    assert kept.folder.is_dir()


def test_records_of_an_earlier_job_are_refused(tmp_path):
    jobs.refuse_old_records(tmp_path)
    (tmp_path / "rank0.jsonl").touch()
    with pytest.raises(ValueError, match="earlier job"):
        jobs.refuse_old_records(tmp_path)


def test_what_it_leaves_running_is_ended_and_a_signal_is_128_more(tmp_path):
    said = tmp_path / "said"
    code = (
        "import os, pathlib, subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); "
        f"pathlib.Path({str(said)!r}).write_text(os.environ[{job.VARIABLE!r}]); os.kill(os.getpid(), 9)"
    )
    assert run_traced([sys.executable, "-c", code], tmp_path) == 137
    assert job.marked(said.read_text()) == []


TRACED_SCRIPT = (
    "import os, pathlib, sys; pathlib.Path(os.environ['RINGDP_TRACE'], 'seen').write_text('x'); sys.exit({})"
)

by_command = pytest.mark.parametrize("name", ["trace", "blame"])


@by_command
@pytest.mark.parametrize("folder", ["ringdp-trace", "elsewhere"])
def test_the_command_is_run_and_its_status_handed_on(tmp_path, monkeypatch, capsys, name, folder):
    monkeypatch.chdir(tmp_path)
    named = [] if folder == "ringdp-trace" else [folder]
    assert main([name, *named, "--", sys.executable, "-c", TRACED_SCRIPT.format(7)]) == 7
    assert Path(folder, "seen").read_text() == "x"
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and folder in said.err


@by_command
def test_each_run_has_a_folder_of_its_own_and_the_latest_is_read(tmp_path, monkeypatch, capsys, name):
    """But for a folder that was named: its traces are not mixed with others."""
    monkeypatch.chdir(tmp_path)
    Path("ringdp-trace-of-mine").mkdir()
    for number in ("", "-2", "-3"):
        assert main([name, "--", "sh", "-c", 'touch "$RINGDP_TRACE/rank_0"']) == 2
        here = f"ringdp-trace{number}/rank_0 is not a trace"
        assert here in capsys.readouterr().err
        assert main([name]) == 2
        assert here in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("*/rank_0")) == ["rank_0"] * 3
    assert main([name, "ringdp-trace", "--", "true"]) == 2
    assert "holds traces of an earlier run" in capsys.readouterr().err


@by_command
def test_json_leaves_stdout_alone(tmp_path, run_warm, name):
    code = "import sys; print('chatter'); sys.exit(7)"
    result = run_warm("-m", "ringdp", name, str(tmp_path), "--json", "--", sys.executable, "-c", code)
    assert (result.returncode, result.stdout) == (7, "")
    assert result.stderr.startswith("chatter\n")


@by_command
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([__file__, "--", "true"], f"{__file__} is not a folder for traces: File exists"),
        ([f"{__file__}/below", "--", "true"], f"{__file__}/below is not a folder for traces: Not a directory"),
        (["/no/such"], "there is no folder /no/such: run the job with RINGDP_TRACE=/no/such, or here: -- COMMAND"),
        (["--", "no-such-program"], "cannot run no-such-program: No such file or directory"),
    ],
)
def test_what_cannot_be_read_or_run_is_one_line(tmp_path, monkeypatch, refusal, name, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert refusal(name, *arguments) == f"ringdp {name}: {said}\n"
