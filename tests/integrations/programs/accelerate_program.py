"""Accelerate: prepare, accumulate, clipping, gather_for_metrics, reduce, save_state, load_state, a scheduler, trackers.

accelerate_program.py FOLDER [line]: under torchrun; with `line` over ringdp.
"""

from __future__ import annotations

from typing import Any

import launched
import ringdp
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from ringdp.integrations import Meter
from torch.utils.data import DataLoader, TensorDataset


def rows(seed: int, count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 8, generator=generator)
    return TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))


class Run:
    """One training, as a script of Accelerate has it."""

    def __init__(self, folder: str, way: str) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)  # there may have been a run in this process
        GradientState._reset_state()
        tracker = "tensorboard" if way.endswith("tensorboard") else None
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=tracker, project_dir=folder)
        self.accelerator.init_trackers("tracked")
        set_seed(5)
        layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(layers.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
        loader, held_out = DataLoader(rows(1, 38), batch_size=3, shuffle=True), DataLoader(rows(2, 13), batch_size=2)
        prepared = self.accelerator.prepare(layers, optimizer, loader, held_out, scheduler)
        self.model, self.optimizer, self.loader, self.held_out, self.scheduler = prepared
        self.log, self.meter = None, Meter(self.model)
        if way.startswith("observed"):
            self.log = ringdp.RunLog(self.model, self.optimizer, items_per_step=12, unit="rows")

    def epoch(self) -> list[float]:
        """Trains; the losses, and the norms that were clipped."""
        seen = []
        for inputs, targets in self.loader:
            with self.accelerator.accumulate(self.model):
                loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    seen.append(self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5).item())
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            seen.append(loss.item())
            if self.log is not None and self.accelerator.sync_gradients:
                self.log.step(loss)
                self.accelerator.log(self.meter.read(), step=len(self.log.history.losses))
        return seen

    def evaluate(self) -> list[list[float]]:
        """Outputs for every sample that was held out, once each; their number is no multiple of the ranks'."""
        self.model.eval()
        found = []
        with torch.no_grad():
            for inputs, targets in self.held_out:
                pair = self.accelerator.gather_for_metrics((self.model(inputs), targets))
                found.extend(torch.cat(pair, 1).tolist())
        self.model.train()
        return found

    def weights(self) -> list[list[float]]:
        whole = self.accelerator.get_state_dict(self.model)
        return [value.flatten().tolist() for value in whole.values()]


def train(folder: str, way: str = "") -> dict[str, Any]:
    """Two epochs, with a state saved after the first, which a second run goes on from; what came out."""
    if way == "line" or way.startswith("observed"):
        dist.init_process_group("ringdp")
    first = Run(folder, way)
    losses = [first.epoch()]
    first.accelerator.save_state(f"{folder}/state")
    losses.append(first.epoch())
    second = Run(folder, way)
    second.accelerator.load_state(f"{folder}/state")
    again = second.epoch()
    accelerator = second.accelerator
    mean = accelerator.reduce(torch.tensor([losses[1][0]]), "mean").item()
    names = gather_object([f"rank {accelerator.process_index}"])
    told = broadcast_object_list([folder.rpartition("/")[0] if accelerator.is_main_process else None])
    padded = accelerator.pad_across_processes(torch.ones(accelerator.process_index + 1))
    accelerator.wait_for_everyone()
    if first.log is not None:
        first.log.write(f"{folder}/run.json")
    for tracker in first.accelerator.trackers:
        tracker.finish()
    return {
        "losses": [*losses, again],
        "held out": first.evaluate(),
        "weights": [first.weights(), second.weights()],
        "others": [mean, names, told, padded.tolist(), accelerator.gather(padded).tolist()],
    }


if __name__ == "__main__":
    launched.main(train)
