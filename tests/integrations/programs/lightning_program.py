"""Lightning: logging with sync_dist, a torchmetrics metric, validation, accumulation, clipping, checkpoints, resume.

lightning_program.py FOLDER [line]: under torchrun; with `line` over ringdp.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import launched
import lightning
import ringdp
import torch
import torchmetrics
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.strategies import DDPStrategy
from ringdp.integrations.lightning import RingdpStrategy, RunLogCallback
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    """A small regression."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        self.mean_error = torchmetrics.MeanAbsoluteError()
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)  # averages a number of samples, too
        self.log("largest", loss, reduce_fx="max", on_epoch=True, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        output = self.layers(batch[0])
        self.mean_error(output, batch[1])
        self.log("mean_error", self.mean_error)
        self.log("val_loss", torch.nn.functional.mse_loss(output, batch[1]), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    def make_optimizer(self) -> torch.optim.Optimizer:
        if self.way.startswith("stage"):
            return ringdp.ZeroOptimizer(self.parameters(), torch.optim.AdamW, lr=0.01)
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def rows(seed: int, count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 8, generator=generator)
    return TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))


def logger_for(way: str, folder: str, epochs: int) -> Logger:
    if way.endswith("tensorboard"):
        return TensorBoardLogger(folder, name="", version=f"tracked-{epochs}")
    if way.endswith("wandb"):
        return WandbLogger(save_dir=folder, offline=True)
    return CSVLogger(folder, name="", version=f"to-{epochs}")


def trainer_for(way: str, folder: str, epochs: int) -> lightning.Trainer:
    checkpoints = ModelCheckpoint(f"{folder}/to-{epochs}", monitor="val_loss", save_last=True, save_top_k=1)
    watching = [RunLogCallback(f"{folder}/run.json")] if "observed" in way else []
    return lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy_for(way),
        max_epochs=epochs,
        accumulate_grad_batches=3,
        gradient_clip_val=None if way.endswith("unclipped") else 0.5,
        logger=logger_for(way, folder, epochs),
        callbacks=[checkpoints, *watching],
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def strategy_for(way: str) -> Any:
    if way.startswith("stage"):
        return RingdpStrategy(zero_stage=int(way.split("-")[1]))
    return DDPStrategy(process_group_backend="ringdp") if way == "line" else "ddp"


def plain(value: Any) -> Any:
    """Without tensors, for JSON."""
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


def train(folder: str, way: str = "") -> dict[str, Any]:
    """Two epochs, then a third from the last checkpoint, then validation of the best one; what came out."""
    lightning.seed_everything(5)
    first = Module(way)
    loader, held_out = DataLoader(rows(1, 40), batch_size=2, shuffle=True), DataLoader(rows(2, 13), batch_size=2)
    trainer_for(way, folder, 2).fit(first, loader, held_out)
    lightning.seed_everything(6)
    second = Module(way)
    trainer = trainer_for(way, folder, 3)
    trainer.fit(second, loader, held_out, ckpt_path=f"{folder}/to-2/last.ckpt")
    logged = {name: value.item() for name, value in trainer.logged_metrics.items()}
    (best,) = trainer.validate(second, held_out, ckpt_path="best", verbose=False)
    if isinstance(trainer.logger, WandbLogger) and trainer.is_global_zero:
        trainer.logger.experiment.finish()  # a forked rank has no end of the process at which it would be
    trainer.save_checkpoint(f"{folder}/best.ckpt", weights_only=True)
    weights = torch.load(f"{folder}/best.ckpt")["state_dict"]
    (moments,) = torch.load(f"{folder}/to-3/last.ckpt", weights_only=False)["optimizer_states"]
    saved = {"weights": plain(weights), "optimizer": plain(moments)}
    files = sorted(Path(folder).glob("to-*/metrics.csv")) if trainer.is_global_zero else ()  # of rank 0
    written = {file.parent.name: file.read_text() for file in files}
    return {"losses": first.losses + second.losses, "logged": logged, "best": best, **saved, **written}


if __name__ == "__main__":
    launched.main(train)
