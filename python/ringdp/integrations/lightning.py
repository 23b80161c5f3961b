"""For Lightning: `RingdpStrategy`, ringdp's DistributedDataParallel and ZeRO stages, and `RunLogCallback`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.optim import Optimizer

from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.integrations.meter import Meter
from ringdp.tools.observe.run_log import RunLog
from ringdp.zero.clip import clip_grad_norm_


class RingdpStrategy(DDPStrategy):
    """`Trainer(strategy=RingdpStrategy())`: DDPStrategy with ringdp's wrapper, over a group of backend ringdp.

    kwargs: those of DDPStrategy, and of `ringdp.DistributedDataParallel`: zero_stage, check_drift, bucket_cap_mb, ...
    With zero_stage, `configure_optimizers` returns `ringdp.ZeroOptimizer(self.parameters(), AdamW, lr=...)`.
    Checkpoints are Lightning's own: whole state dicts, the optimizer's on rank 0, which any strategy, stage and number
    of ranks loads. `gradient_clip_val` clips by `ringdp.clip_grad_norm_`, so that all stages have the same bits.
    """

    def __init__(self, process_group_backend: str = "ringdp", **kwargs: Any) -> None:
        """See the class."""
        super().__init__(process_group_backend=process_group_backend, **kwargs)
        self._sharded: DistributedDataParallel | None = None  # at stage 3

    def setup(self, trainer: lightning.Trainer) -> None:
        """As DDPStrategy's; after a fit() at stage 3 the model is evaluated as it is, in shards."""
        if trainer.state.fn == TrainerFn.FITTING or self._sharded is None:
            super().setup(trainer)
            return
        self.accelerator.setup(trainer)
        self.model = self._sharded
        self.setup_precision_plugin()

    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        wrapper = DistributedDataParallel(model, device_ids=self.determine_ddp_device_ids(), **self._ddp_kwargs)
        self._sharded = wrapper if wrapper.zero_stage == 3 else None
        return wrapper

    def setup_precision_plugin(self) -> None:
        """As DDPStrategy's."""
        super().setup_precision_plugin()
        self.precision_plugin.clip_grad_by_norm = _clip

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole, also at stage 3. Collective there."""
        return super().lightning_module_state_dict() if self._sharded is None else self._sharded.full_state_dict()


def _clip(optimizer: Optimizer, clip_val: float) -> None:
    """In place of the method of Lightning's precision plugin, which reads gradients that may be in shards."""
    clip_grad_norm_((p for group in optimizer.param_groups for p in group["params"]), clip_val)


class RunLogCallback(lightning.Callback):
    """Records the run for `ringdp report`, and draws `Meter`'s figures in the Trainer's loggers (TensorBoard, W&B).

    file: what rank 0 writes at the end of fit(), or None. validation: the name of the logged value that is the
    validation loss. kwargs: of `ringdp.RunLog` (items_per_step, unit, settings). The record goes on after a resume.
    It needs automatic optimization and one optimizer; the loss of a step is the mean of its micro-batches.
    """

    def __init__(self, file: str | Path | None = "run.json", *, validation: str = "val_loss", **kwargs: Any) -> None:
        """See the class."""
        self._file, self._validation, self._kwargs = file, validation, kwargs
        self._history: Mapping[str, Any] | None = None
        self._log: RunLog | None = None

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Lightning calls it, and those below."""
        wrapper = trainer.strategy.model
        self._log, self._meter = RunLog(wrapper, trainer.optimizers[0], **self._kwargs), Meter(wrapper)
        if self._history is not None:
            self._log.load_state_dict(self._history)
        self._loss, self._steps = 0.0, trainer.global_step

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._loss = self._loss + outputs["loss"]  # divided by the number of micro-batches already
        if trainer.global_step == self._steps:
            return
        self._log.step(self._loss)
        self._loss, self._steps = 0.0, trainer.global_step
        if self._steps % trainer.log_every_n_steps == 0:
            figures = self._meter.read()
            for logger in trainer.loggers:
                logger.log_metrics(figures, self._steps)

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        loss = trainer.callback_metrics.get(self._validation)
        if self._log is not None and loss is not None and not trainer.sanity_checking:
            self._log.validation(loss)

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._file is not None:
            self._log.write(self._file)

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoint, which keeps rank 0's: losses are means over the ranks. Collective."""
        if self._log is None or not self._log.history.losses:
            return {}
        history = self._log.report()["history"]
        return {**history, "losses": [math.nan if loss is None else loss for loss in history["losses"]]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            self._history = state_dict
