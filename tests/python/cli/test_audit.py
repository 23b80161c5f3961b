"""`ringdp audit`: real jobs, from their first step to the status."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest
import warm_torchrun
from ringdp.cli import main

SCRIPT, LEAF_SCRIPT = (str(Path(__file__).with_name(name)) for name in ("watched_script.py", "leaf_script.py"))
WARM = [sys.executable, warm_torchrun.__file__]


@pytest.fixture
def audited(run_warm):
    """audited(options, *arguments, program, launcher): the command's result on a job of two ranks, or a launcher's."""
    if "ringdp" not in metadata.entry_points(group="torch.backends").names:
        pytest.skip("ringdp is not installed here, so torch cannot find its entry point")

    def run(options, *script, program=SCRIPT, launcher=(*WARM, "2")):
        job = [*launcher, program, *script]
        return run_warm("-m", "ringdp", "audit", *options, "--", *job, OMP_NUM_THREADS="1")

    return run


def test_a_plain_loader_ends_the_job_at_its_first_steps(audited):
    result = audited(["--fail", "--json"], "plain")
    report = json.loads(result.stdout)
    assert result.returncode == 1, result.stderr
    assert report["stopped"] == "duplicates was found" or report["status"] == 0  # the job may have been faster
    (found,) = [finding for finding in report["findings"] if finding["check"] == "duplicates"]
    assert (found["numbers"]["step_1_distinct"], found["numbers"]["step_1_drawn"]) == (8, 16)
    assert report["world"] == 2


def test_a_forgotten_set_epoch_with_a_picture_and_records_to_judge_again(audited, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    result = audited(["--png", str(tmp_path / "feed.png"), "--records", str(tmp_path / "records")], "stale")
    assert result.returncode == 0, result.stderr
    assert "rank 1 is done" in result.stdout
    assert "PROBLEM stale epoch" in result.stdout and "epoch 2" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("1 problem; writing it down took")
    assert (tmp_path / "feed.png").read_bytes().startswith(b"\x89PNG")
    assert main.main(["audit", "--records", str(tmp_path / "records"), "--json", "--fail"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [finding["check"] for finding in report["findings"]] == ["stale epoch"]
    assert any("no backward pass came between its draws" in sentence for sentence in report["not_judged"])


@pytest.mark.long
def test_a_good_job_keeps_its_own_status(audited):
    result = audited(["--fail"], "good", "1")
    assert result.returncode == 1 and "no problems" in result.stdout, result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith(("PROBLEM", "NOTE"))] == []


@pytest.mark.long
def test_a_good_job_with_micro_batches(audited):
    result = audited(["--fail"], "loader", program=LEAF_SCRIPT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("no problems in 6 steps of micro-batches; writing it down took")


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "status", "check", "says"),
    [
        ("missing", 1, "leaf missing", "step 0: no rank has run leaf 4 of 8"),  # the job itself fails, too
        ("seed", 0, "leaf seed", "by rank, ringdp.leaf's seed=: rank 0: 0; rank 1: 7"),
    ],
)
def test_faults_of_micro_batches_are_named(audited, fault, status, check, says):
    result = audited(["--json"], "indices", fault, program=LEAF_SCRIPT)
    assert result.returncode == status, result.stderr
    (found,) = json.loads(result.stdout)["findings"]
    assert found["check"] == check and says in found["seen"]


@pytest.mark.long
def test_eight_ranks_with_one_seed(audited):
    result = audited(["--fail", "--json"], "plain", launcher=(*WARM, "8"))
    (found,) = [f for f in json.loads(result.stdout)["findings"] if f["check"] == "duplicates"]
    assert found["numbers"]["step_1_distinct_share"] == 0.125


def test_steps_end_a_job(run_warm):
    code = (
        "import torch, time, sys\n"
        "from torch.utils.data import DataLoader\n"
        "for _ in DataLoader(list(range(100000))): time.sleep(0.01)"
    )
    result = run_warm("-m", "ringdp", "audit", "--steps", "5", "--json", "--", sys.executable, "-c", code)
    report = json.loads(result.stdout)
    assert (result.returncode, report["stopped"]) == (0, "every rank has drawn 5 batches"), result.stderr


def test_a_job_that_is_not_watched_is_said(capfd):
    assert main.main(["audit", "--", "echo", "hello"]) == 2
    said = capfd.readouterr()
    assert "hello" in said.out and "TORCH_DEVICE_BACKEND_AUTOLOAD" in said.err


def test_a_watched_job_without_loaders_is_told_so(refusal):
    """And not that ringdp is not installed there."""
    attached = 'touch "${RINGDP_ATTACH#audit:}/attached"'  # as attach/start.py does
    said = refusal("audit", "--", "sh", "-c", attached)
    assert "no rank has iterated a DataLoader" in said and "installed" not in said


def test_a_picture_of_nothing_is_said(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    header = {"kind": "rank", "rank": 0, "world": 1, "restart": 0, "time": 0}
    (tmp_path / "rank0.jsonl").write_text(json.dumps(header) + "\n")
    assert main.main(["audit", "--records", str(tmp_path), "--png", str(tmp_path / "x.png")]) == 0
    assert capsys.readouterr().err == f"ringdp audit: no {tmp_path / 'x.png'}: no rank has drawn a sample\n"
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize("row", [{"kind": "loader"}, {"kind": "loader", "loader": []}, {"kind": "cost"}])
def test_records_of_something_else_are_one_line(tmp_path, refusal, row):
    header = {"kind": "rank", "rank": 0, "world": 1, "restart": 0, "time": 0}
    (tmp_path / "rank0.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(row)}\n")
    said = refusal("audit", "--records", str(tmp_path))
    assert f"--records {tmp_path} holds no records of `ringdp audit`" in said
