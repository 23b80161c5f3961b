"""Run by torchrun: a training over ringdp under Lightning or Accelerate; rank 0 writes parameters and backend names.

trainer_script.py lightning|accelerate OUTPUT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

WIDTH, STEPS, RATE = 8, 4, 0.1


def model() -> torch.nn.Module:
    """The same weights on every rank."""
    torch.manual_seed(3)
    return torch.nn.Linear(WIDTH, WIDTH)


def rows() -> torch.Tensor:
    """One row for each of two ranks and each step."""
    return torch.randn(2 * STEPS, WIDTH, generator=torch.Generator().manual_seed(4))


def dataset() -> torch.utils.data.TensorDataset:
    """The rows, to be dealt out to the ranks in turn."""
    return torch.utils.data.TensorDataset(rows())


def loss(output: torch.Tensor) -> torch.Tensor:
    """The loss of one row."""
    return output.square().mean()


def under_lightning() -> torch.nn.Module:
    """Lightning makes the group and wraps the model."""
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            found = loss(self.inner(batch[0]))
            self.log("loss", found, on_epoch=True, sync_dist=True)  # averages a number of samples, a whole number, too
            return found

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="ringdp"),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,  # Lightning's own would shuffle
    )
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    in_turn = torch.utils.data.DistributedSampler(dataset(), num_replicas=ranks, rank=rank, shuffle=False)
    trainer.fit(module, torch.utils.data.DataLoader(dataset(), batch_size=1, sampler=in_turn))
    return module.inner


def under_accelerate() -> torch.nn.Module:
    """Accelerate knows no backend from outside torch, but takes the group that is there."""
    dist.init_process_group("ringdp")
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    bare = model()
    whole = torch.utils.data.DataLoader(dataset(), batch_size=1)
    prepared, optimizer, loader = accelerator.prepare(bare, torch.optim.SGD(bare.parameters(), lr=RATE), whole)
    for (row,) in loader:
        optimizer.zero_grad()
        accelerator.backward(loss(prepared(row)))
        optimizer.step()
    return accelerator.unwrap_model(prepared)


def main(framework: str, output: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    trained = {"lightning": under_lightning, "accelerate": under_accelerate}[framework]()
    names: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(names, dist.get_backend())
    if dist.get_rank() == 0:
        parameters = [parameter.flatten().tolist() for parameter in trained.parameters()]
        Path(output).write_text(json.dumps({"parameters": parameters, "backends": names}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
