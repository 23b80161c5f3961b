"""Ray Train: TorchTrainer on two CPU workers, with prepare_model, prepare_data_loader, reports, checkpoints, resume.

ray_program.py FOLDER [line]: starts Ray itself; with `line` over ringdp.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, get_checkpoint, get_context, report
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset


def worker(config: dict[str, Any]) -> None:
    """Trains on each worker; a checkpoint after each epoch."""
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(26, 8, generator=generator)
    loader = prepare_data_loader(DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 2, shuffle=True))
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = prepare_model(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    begin = 0
    if earlier := get_checkpoint():
        with earlier.as_directory() as saved:
            state = torch.load(f"{saved}/state.pt")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["epoch"] + 1
    for epoch in range(begin, config["epochs"]):
        loader.sampler.set_epoch(epoch)
        losses = []
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        total = torch.tensor(losses)
        dist.all_reduce(total)
        backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
        figures = {"losses": losses, "total": total.tolist(), "carrier": type(backend).__module__.partition(".")[0]}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if get_context().get_world_rank() == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, f"{folder}/state.pt")
                checkpoint = Checkpoint.from_directory(folder)
            report({**figures, "epoch": epoch, "began": begin}, checkpoint=checkpoint)


def run(folder: str, way: str, epochs: int) -> Any:
    line = {"torch_config": TorchConfig(backend="ringdp")} if way == "line" else {}
    return TorchTrainer(
        worker,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder, name="run", checkpoint_config=CheckpointConfig(num_to_keep=3)),
        **line,
    ).fit()


def train(folder: str, way: str = "") -> dict[str, Any]:
    """Two epochs, then a third by a run of the same name, which goes on from the checkpoint; what came out."""
    first = run(folder, way, 2)
    second = run(folder, way, 3)
    epochs = [first.metrics, second.metrics]
    names = ("losses", "total", "epoch", "began")
    with second.checkpoint.as_directory() as saved:
        state = torch.load(f"{saved}/state.pt")
    weights = {name: value.flatten().tolist() for name, value in state["model"].items()}
    found = [{name: metrics[name] for name in names} for metrics in epochs]
    return {"epochs": found, "weights": weights, "carriers": [metrics["carrier"] for metrics in epochs]}


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    Path(sys.argv[1], "result.json").write_text(json.dumps(train(*sys.argv[1:])))
    ray.shutdown()
