"""DeepSpeed: its engine at ZeRO stages 1 to 3, accumulation, clipping, checkpoints, resume.

deepspeed_program.py FOLDER [line]: under `deepspeed` or torchrun; with `line` over ringdp.
"""

from __future__ import annotations

from typing import Any

import deepspeed
import launched
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

MICRO, ACCUMULATED = 2, 2


def engine_for(stage: int) -> tuple[Any, Any]:
    """An engine and its loader."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    inputs = torch.randn(24, 8, generator=torch.Generator().manual_seed(2))
    config = {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": ACCUMULATED,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    engine, _, loader, _ = deepspeed.initialize(model=model, config=config, training_data=data)
    return engine, loader


def epoch(engine: Any, loader: Any) -> list[float]:
    losses = []
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def train(folder: str, way: str = "") -> dict[str, Any]:
    """At each stage two epochs, and the second once more from the checkpoint of the first; what came out."""
    if way == "line":
        deepspeed.init_distributed(dist_backend="ringdp")
    else:
        deepspeed.init_distributed()
    found = {}
    for stage in (1, 2, 3):
        engine, loader = engine_for(stage)
        losses = [epoch(engine, loader)]
        engine.save_checkpoint(f"{folder}/stage-{stage}")
        losses.append(epoch(engine, loader))
        again, loader = engine_for(stage)
        again.load_checkpoint(f"{folder}/stage-{stage}")
        losses.append(epoch(again, loader))
        found[f"losses at {stage}"] = losses
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    return {**found, "carriers": [type(backend).__module__.partition(".")[0]]}


if __name__ == "__main__":
    launched.main(train)
