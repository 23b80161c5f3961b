"""train_gpt: its options, checkpoints, training and proof, and whole runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ringdp.checkpoint import CheckpointError
from ringdp.examples import train_gpt as subject
from ringdp.examples.gpt import read_corpus
from ringdp.examples.gpt_report import Proof, promises_rank_order
from ringdp.examples.launch import Interrupt
from ringdp.examples.train_gpt import QUICK, Options, Trainer, load_checkpoint, parse_options, prove, save_checkpoint
from ringdp.testing import parameters_hash
from ringdp.tools.pages import run_file
from torch import nn


def test_the_default_run_trains_over_ringdp_on_the_standard_library():
    options = parse_options([])
    assert options.backend == "ringdp"
    assert (options.corpus / "argparse.py").is_file()
    assert options.last_step == options.steps


def test_quick_changes_defaults_only():
    options = parse_options(["--quick", "--steps", "7"])
    assert options.steps == 7
    assert options.dim == QUICK["dim"] != parse_options([]).dim


def test_stop_at_ends_early_but_never_late():
    assert parse_options(["--steps", "9", "--stop-at", "4"]).last_step == 4
    assert parse_options(["--steps", "9", "--stop-at", "40"]).last_step == 9


def test_paths_and_dashes():
    options = parse_options(["--out", "a/b", "--save-every", "3"])
    assert options.out == Path("a/b")
    assert options.save_every == 3


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (["--steps", "0"], "--steps is 0, must be above 0"),
        (["--ddp", "horovod"], "--ddp is 'horovod', must be one of ringdp, stock"),
        (["--batch", "-2"], "--batch is -2, must be above 0"),
        (["--lr", "nan"], "--lr is nan"),
        (["--clip", "-1"], "--clip is -1.0, must be at least 0"),
        (["--save-every", "-1"], "--save-every is -1"),
        (["--nproc", "9"], "--nproc is 9, must be 1..8"),
        (["--nproc", "0"], "--nproc is 0, must be 1..8"),
        (["--zero-stage", "4"], "--zero-stage is 4, must be one of 0, 1, 2, 3"),
        (["--zero-stage", "2", "--ddp", "stock"], "--zero-stage is 2, which needs --ddp ringdp"),
        (["--stop-at", "0"], "--stop-at is 0"),
        (["--heads", "3"], "--heads is 3, which does not divide --dim 256"),
        (["--dropout", "1"], "--dropout is 1.0, must be below 1"),
        (["--corpus", "/no/such/folder"], "/no/such/folder, which is not a folder"),
        (["--step", "3"], "unrecognized arguments: --step"),
    ],
)
def test_bad_values_are_named(bad, named, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_options(bad)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def made(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, value)
    return model, torch.optim.SGD(model.parameters(), lr=value)


def saved(folder: Any, **settings: Any) -> None:
    save_checkpoint(folder, *made(1.0), {"losses": [0.5], "validation": [(0, 2.0)], "seconds": 1.0}, settings)


@pytest.mark.usefixtures("alone")
def test_state_history_and_rng_come_back(tmp_path):
    saved(tmp_path, seed=1)
    drawn = torch.rand(4)
    model, optimizer = made(3.0)
    history = load_checkpoint(tmp_path, model, optimizer, {"seed": 1})
    assert history == {"losses": [0.5], "validation": [(0, 2.0)], "seconds": 1.0}
    assert bool((model.weight == 1.0).all()) and optimizer.param_groups[0]["lr"] == 1.0
    torch.rand(4)  # what `made` draws is not what was drawn
    load_checkpoint(tmp_path, model, optimizer, {"seed": 1})
    assert torch.equal(torch.rand(4), drawn)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("settings", "says"),
    [({"batch": 4, "ranks": 3}, "ranks = 2, this run has ranks = 3"), ({"width": 8}, "width = None, this run has")],
)
def test_another_runs_checkpoint_is_refused_by_name_and_values(tmp_path, settings, says):
    saved(tmp_path, batch=4, ranks=2)
    model, optimizer = made(3.0)
    with pytest.raises(ValueError, match=says):
        load_checkpoint(tmp_path, model, optimizer, settings)
    assert bool((model.weight == 3.0).all())


@pytest.mark.usefixtures("alone")
def test_a_damaged_one_is_named(tmp_path):
    saved(tmp_path)
    next((tmp_path / "checkpoints").glob("*/*.distcp")).write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"__0_0.distcp is truncated"):
        load_checkpoint(tmp_path, *made(3.0), {})


@pytest.mark.usefixtures("alone")
def test_without_a_checkpoint_the_message_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="run without --resume"):
        load_checkpoint(tmp_path, *made(1.0), {})


@pytest.mark.usefixtures("alone")
def test_git_ignores_the_folder(tmp_path):
    saved(tmp_path / "new")
    assert (tmp_path / "new" / ".gitignore").read_text() == "*\n"


@pytest.mark.usefixtures("alone")
def test_a_folder_that_cannot_be_made_is_every_ranks_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="making the folder of a run"):
        saved(tmp_path / "file" / "run")


def train(options: Options, interrupt: Interrupt | None = None) -> Trainer:
    trainer = Trainer(options, read_corpus(options.corpus))
    if options.resume:
        trainer.resume()
    trainer.train(interrupt or Interrupt(), lambda history: None)
    return trainer


@pytest.fixture
def run(tiny) -> Callable[..., Trainer]:
    return lambda *arguments: train(tiny("--steps", "8", *arguments))


@pytest.mark.usefixtures("alone")
def test_a_resumed_run_has_the_bits_of_an_unbroken_one(run):
    unbroken = run()
    run("--stop-at", "3")
    resumed = run("--resume")
    assert resumed.step == unbroken.step == 8
    assert parameters_hash(resumed.model) == parameters_hash(unbroken.model)
    assert resumed.history.losses == unbroken.history.losses
    assert resumed.history.validation == unbroken.history.validation


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("first", "then"), [("1", "2"), ("2", "0")])
def test_a_stage_changes_no_bit_also_where_another_goes_on(run, first, then):
    unbroken = run()
    run("--stop-at", "3", "--zero-stage", first)
    resumed = run("--resume", "--zero-stage", then)
    assert parameters_hash(resumed.model) == parameters_hash(unbroken.model)
    assert resumed.history.losses == unbroken.history.losses
    assert resumed.log.memory.total > 0


@pytest.mark.usefixtures("alone")
def test_without_the_rng_state_the_bits_would_differ(run, monkeypatch):
    unbroken = run()
    run("--stop-at", "3")
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    assert parameters_hash(run("--resume").model) != parameters_hash(unbroken.model)


@pytest.mark.usefixtures("alone")
def test_another_runs_checkpoint_is_refused(run):
    run("--stop-at", "3")
    with pytest.raises(ValueError, match="seed = 0, this run has seed = 1"):
        run("--resume", "--seed", "1")


@pytest.mark.usefixtures("alone")
def test_an_interrupted_run_stops_after_a_step_and_saves(tiny):
    interrupted = Interrupt()
    interrupted.number = 15
    stopped = train(tiny("--steps", "8"), interrupted)
    assert stopped.step == 1
    assert train(tiny("--steps", "8", "--resume")).step == 8


@pytest.mark.usefixtures("alone")
def test_training_lowers_the_validation_loss(tiny):
    history = train(tiny("--steps", "40", "--lr", "1e-2")).history
    assert history.validation[-1][0] == 40
    assert history.validation[-1][1] < history.validation[0][1] - 0.5


@pytest.mark.usefixtures("alone")
def test_clipping_and_its_absence_matter(run):
    hashes = {parameters_hash(run("--clip", clip).model) for clip in ("0", "0.01")}
    assert len(hashes) == 2


@pytest.mark.usefixtures("alone")
def test_a_history_of_another_release_is_named(run, monkeypatch):
    trainer = run("--stop-at", "3")
    monkeypatch.setattr(subject, "load_checkpoint", lambda *given: {"losses": [5.0], "validation": [], "seconds": 1.0})
    with pytest.raises(ValueError, match="another release's: start anew, without --resume"):
        trainer.resume()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("ddp", ["ringdp", "stock"])
def test_an_honest_run_equals_one_process(tiny, ddp):
    options = tiny("--ddp", ddp)
    found = prove(options, read_corpus(options.corpus).train)
    assert found.equal
    assert str(found) == f"equal (sha256 {found.of_one_process[:12]})"


@pytest.mark.usefixtures("alone")
def test_one_other_micro_batch_is_seen(tiny, monkeypatch):
    options = tiny()
    honest = subject._on_this_rank

    def other_order(options, windows, rank, world):
        windows._text = windows._text.clone()
        windows._text[0] ^= 1
        digest = honest(options, windows, rank, world)
        windows._text[0] ^= 1
        return digest

    monkeypatch.setattr(subject, "_on_this_rank", other_order)
    monkeypatch.setattr(subject, "TEXT_BYTES", 200)
    found = prove(options, read_corpus(options.corpus).train)
    assert not found.equal
    assert str(found).startswith("DIFFERENT")


def test_one_rank_that_differs_is_a_difference_and_named():
    found = Proof(["a" * 64, "b" * 64, "a" * 64], "a" * 64)
    assert not found.equal
    assert "rank 1 bbbbbbbbbbbb" in str(found)


@pytest.mark.parametrize(
    ("backend", "world", "ddp", "promised"),
    [
        ("ringdp", 8, "stock", True),
        ("cpu:ringdp", 3, "stock", True),
        ("gloo", 2, "stock", True),
        ("gloo", 3, "stock", False),
        ("gloo", 3, "ringdp", True),
    ],
)
def test_who_promises_rank_order(backend, world, ddp, promised):
    assert promises_rank_order(backend, world, ddp) is promised


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


@pytest.mark.long
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
