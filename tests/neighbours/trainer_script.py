"""Run by torchrun: the same training under Lightning or Accelerate; rank 0 writes parameters and backend names.

trainer_script.py lightning|accelerate BACKEND OUTPUT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

WIDTH, STEPS = 8, 4


def model() -> torch.nn.Module:
    """The same weights on every rank."""
    torch.manual_seed(3)
    return torch.nn.Linear(WIDTH, WIDTH)


def batches() -> torch.utils.data.DataLoader:
    """Rows that a sampler deals out to the ranks."""
    rows = torch.randn(2 * STEPS, WIDTH, generator=torch.Generator().manual_seed(4))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=1)


def under_lightning(backend: str) -> torch.nn.Module:
    """Lightning makes the group and wraps the model."""
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def training_step(self, rows: list[torch.Tensor], number: int) -> torch.Tensor:
            return self.inner(rows[0]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, batches())
    return module.inner


def under_accelerate(backend: str) -> torch.nn.Module:
    """Accelerate knows no backend from outside torch, but takes the group that is there."""
    dist.init_process_group(backend)
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    bare = model()
    prepared, optimizer, loader = accelerator.prepare(bare, torch.optim.SGD(bare.parameters(), lr=0.1), batches())
    for (rows,) in loader:
        optimizer.zero_grad()
        accelerator.backward(prepared(rows).square().mean())
        optimizer.step()
    return accelerator.unwrap_model(prepared)


def main(framework: str, backend: str, output: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    trained = {"lightning": under_lightning, "accelerate": under_accelerate}[framework](backend)
    names: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(names, dist.get_backend())
    if dist.get_rank() == 0:
        parameters = [parameter.flatten().tolist() for parameter in trained.parameters()]
        Path(output).write_text(json.dumps({"parameters": parameters, "backends": names}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
