"""The trainer, on one rank: a resumed run has the bits of an unbroken one, and everything saved matters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ringdp.examples import checkpoint
from ringdp.examples.corpus import read
from ringdp.examples.interrupt import Interrupt
from ringdp.examples.options import Options
from ringdp.examples.trainer import Trainer
from ringdp.testing import parameters_hash

pytestmark = pytest.mark.usefixtures("alone")


def train(options: Options, interrupt: Interrupt | None = None) -> Trainer:
    trainer = Trainer(options, read(options.corpus))
    if options.resume:
        trainer.resume()
    trainer.train(interrupt or Interrupt(), lambda history: None)
    return trainer


@pytest.fixture
def run(tiny) -> Callable[..., Trainer]:
    return lambda *arguments: train(tiny("--steps", "8", *arguments))


def test_a_resumed_run_has_the_bits_of_an_unbroken_one(run):
    unbroken = run()
    run("--stop-at", "3")
    resumed = run("--resume")
    assert resumed.step == unbroken.step == 8
    assert parameters_hash(resumed.model) == parameters_hash(unbroken.model)
    assert resumed.history.losses == unbroken.history.losses
    assert resumed.history.validation == unbroken.history.validation


@pytest.mark.parametrize(("first", "then"), [("1", "2"), ("2", "0")])
def test_a_stage_changes_no_bit_also_where_another_goes_on(run, first, then):
    unbroken = run()
    run("--stop-at", "3", "--zero-stage", first)
    resumed = run("--resume", "--zero-stage", then)
    assert parameters_hash(resumed.model) == parameters_hash(unbroken.model)
    assert resumed.history.losses == unbroken.history.losses
    assert resumed.log.memory.total > 0


def test_without_the_rng_state_the_bits_would_differ(run, monkeypatch):
    unbroken = run()
    run("--stop-at", "3")
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    assert parameters_hash(run("--resume").model) != parameters_hash(unbroken.model)


def test_another_runs_checkpoint_is_refused(run):
    run("--stop-at", "3")
    with pytest.raises(ValueError, match="seed = 0, this run has seed = 1"):
        run("--resume", "--seed", "1")


def test_an_interrupted_run_stops_after_a_step_and_saves(tiny):
    interrupted = Interrupt()
    interrupted.number = 15
    stopped = train(tiny("--steps", "8"), interrupted)
    assert stopped.step == 1
    assert train(tiny("--steps", "8", "--resume")).step == 8


def test_training_lowers_the_validation_loss(tiny):
    history = train(tiny("--steps", "40", "--lr", "1e-2")).history
    assert history.validation[-1][0] == 40
    assert history.validation[-1][1] < history.validation[0][1] - 0.5


def test_clipping_and_its_absence_matter(run):
    hashes = {parameters_hash(run("--clip", clip).model) for clip in ("0", "0.01")}
    assert len(hashes) == 2


def test_a_history_of_another_release_is_named(run, monkeypatch):
    trainer = run("--stop-at", "3")
    monkeypatch.setattr(checkpoint, "load", lambda *given: {"losses": [5.0], "validation": [], "seconds": 1.0})
    with pytest.raises(ValueError, match="another release's: start anew, without --resume"):
        trainer.resume()
