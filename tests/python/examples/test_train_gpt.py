"""train_gpt as users start it, ranks as processes, over every backend that is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from ringdp.pages import run_file


def report(path: Path) -> dict:
    return json.loads(path.read_text())


def test_a_run_ends_with_table_picture_and_proof(train_gpt, backend, tmp_path):
    printed = train_gpt(2, "--backend", backend, "--json", str(tmp_path / "report.json"))
    found = report(tmp_path / "report.json")
    for part in (
        "what it writes now",
        "validation loss",
        "tokens/s",
        "step, gloo / ours",
        "one process: equal",
    ):
        assert part in printed
    assert found["equal_to_one_process"]
    assert len(set(found["final_hashes"])) == 1
    assert found["history"]["losses"][-1] < found["history"]["losses"][0]
    run_file.check(found)
    assert len(list((tmp_path / "out" / "checkpoints").glob("checkpoint-*"))) == 1


def test_a_run_resumed_at_another_stage_has_the_bits_of_an_unbroken_one(train_gpt, tmp_path):
    short = ("--rounds", "0", "--sample", "0", "--steps", "6")
    train_gpt(2, *short, "--json", str(tmp_path / "unbroken.json"))
    assert "go on with --resume" in train_gpt(2, *short, "--stop-at", "2", "--zero-stage", "2")
    train_gpt(2, *short, "--resume", "--zero-stage", "1", "--json", str(tmp_path / "resumed.json"))
    unbroken, resumed = report(tmp_path / "unbroken.json"), report(tmp_path / "resumed.json")
    assert resumed["final_hashes"] == unbroken["final_hashes"]
    assert resumed["history"]["losses"] == unbroken["history"]["losses"]


@pytest.mark.long  # tests/parity holds every stage to the bits in less time
def test_every_stage_ends_with_the_same_parameters_and_says_what_it_held(train_gpt, tmp_path):
    hashes = set()
    for stage in ("0", "1", "2"):
        out = tmp_path / f"{stage}.json"
        rounds = "1" if stage == "2" else "0"
        printed = train_gpt(2, "--zero-stage", stage, "--steps", "4", "--rounds", rounds, "--json", str(out))
        assert "memory on rank 0: " in printed and "one process: equal" in printed
        hashes.update(report(out)["final_hashes"])
    assert len(hashes) == 1


@pytest.mark.long
@pytest.mark.parametrize("ddp", ["ringdp", "stock"])
def test_three_ranks_run_and_only_who_promises_rank_order_must_have_it(train_gpt, backend, ddp, tmp_path):
    shown = ("--rounds", "0", "--json", str(tmp_path / "report.json"))
    printed = train_gpt(3, "--backend", backend, "--ddp", ddp, *shown)
    assert report(tmp_path / "report.json")["world"] == 3
    excused = "expected of it" in printed and (backend, ddp) == ("gloo", "stock")
    assert "one process: equal" in printed or excused


def test_sigterm_saves_a_checkpoint_and_leaves_no_process(start_train_gpt, tmp_path):
    endless = ("--backend", "ringdp", "--steps", "1000000", "--evaluate", "1")
    started = start_train_gpt(2, *endless)
    try:
        wait_for_checkpoint(started, tmp_path / "out" / "checkpoints")
        ranks = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        started.send_signal(signal.SIGTERM)
        printed, _ = started.communicate(timeout=120)
    finally:
        started.kill()
    assert len(ranks) == 2
    assert "stopped after step" in printed
    assert started.returncode != 0
    assert not [rank for rank in ranks if Path("/proc", rank).exists()]


def wait_for_checkpoint(started: subprocess.Popen[str], folder: Path) -> None:
    """Until the first checkpoint is written: training is in its loop then. Fails when the run ends before."""
    while not any(folder.glob("checkpoint-*")):
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(timeout=0.2)


def test_without_torchrun_it_says_how_to_start(run_warm):
    variables = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    ended = run_warm("-m", "ringdp.examples.train_gpt", "--quick", **variables)
    assert ended.returncode == 2
    assert "torchrun --nproc-per-node 2" in ended.stderr
    assert ended.stdout == ""
