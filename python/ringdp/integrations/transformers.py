"""For Hugging Face's Trainer: `observe(trainer)` records its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ringdp.integrations.meter import Meter
from ringdp.tools.observe.run_log import RunLog


def observe(trainer: Trainer, file: str | Path | None = "run.json", **kwargs: Any) -> None:
    """Records `trainer.train()` for `ringdp report`, and adds `Meter`'s figures to what the Trainer logs.

    So they are drawn by whatever it reports to (`report_to="tensorboard"`, `"wandb"`). file: what rank 0 writes at the
    end of train(), or None. kwargs: of `ringdp.RunLog` (items_per_step, unit, settings). Call it on every rank, once,
    before train(), and start at least one rank by a launcher: train() of a model that is not wrapped is a TypeError.
    """
    observer = _Observer(trainer, file, kwargs)
    # In front of the callbacks that report: they see what it adds.
    trainer.callback_handler.callbacks.insert(0, observer)
    trainer.training_step = observer.training_step


class _Observer(TrainerCallback):
    """The Trainer hands its callbacks neither the wrapped model nor the loss of a step: training_step() has both."""

    def __init__(self, trainer: Trainer, file: str | Path | None, kwargs: dict[str, Any]) -> None:
        self._trainer, self._file, self._kwargs = trainer, file, kwargs
        self._training_step = trainer.training_step
        self._log: RunLog | None = None
        self._loss: torch.Tensor | float = 0.0

    def training_step(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self._log is None:
            self._log, self._meter = RunLog(model, self._trainer.optimizer, **self._kwargs), Meter(model)
        loss = self._training_step(model, *args, **kwargs)
        self._loss = self._loss + loss
        return loss

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._log.step(self._loss)
        self._loss = 0.0

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        if "loss" in logs:  # of training
            logs.update(self._meter.read())

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **_: Any
    ) -> None:
        if self._log is not None and "eval_loss" in metrics:
            self._log.validation(metrics["eval_loss"])

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._file is not None and self._log is not None:
            self._log.write(self._file)
        self._log, self._loss = None, 0.0
