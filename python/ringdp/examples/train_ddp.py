"""The usual training script of stock DDP. Of ringdp it has one word: the backend's name.

    torchrun --nproc-per-node 2 -m ringdp.examples.train_ddp        (or without torchrun: python -m ...)

torch's DistributedDataParallel, DistributedSampler, DataLoader and AdamW, on GPUs where there are some and otherwise
on the CPU. `--backend gloo` runs the same with torch's backend, for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ringdp.examples import launch

MODULE = "ringdp.examples.train_ddp"
BATCH, WORKERS, LOG_EVERY, RATE = 4, 2, 100, 3e-4
VOCABULARY, LENGTH, WIDTH = 32, 16, 32


class CountingTransformer(nn.Module):
    """Two small blocks that learn to go on counting: tokens [B, T] to logits [B, T, VOCABULARY]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        """The logits of every next token."""
        return self.head(self.blocks(self.tokens(x) + self.places, mask=self.mask, is_causal=True))


def counting(sequences: int) -> TensorDataset:
    """Sequences that count up in steps of 1 to 3, modulo the vocabulary: inputs and the tokens that follow them."""
    source = torch.Generator().manual_seed(0)
    begin = torch.randint(VOCABULARY, (sequences, 1), generator=source)
    step = torch.randint(1, 4, (sequences, 1), generator=source)
    tokens = (begin + step * torch.arange(LENGTH + 1)) % VOCABULARY
    return TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def setup(backend: str) -> torch.device:
    """Joins the other ranks, by the variables that torchrun sets, and takes this rank's device."""
    dist.init_process_group(backend=backend)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def one_step(
    model: nn.Module, batch: Sequence[Tensor], optimizer: torch.optim.Optimizer, criterion: nn.Module
) -> Tensor:
    """One step on this rank's batch; its loss, a tensor without a graph."""
    device = next(model.parameters()).device
    x, y = (tensor.to(device, non_blocking=True) for tensor in batch)
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(x).flatten(0, 1), y.flatten())
    loss.backward()  # gradients are averaged here, bucket by bucket, while it goes on
    optimizer.step()
    return loss.detach()


def train(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """All epochs on this rank; rank 0 logs. The report."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(
        CountingTransformer().to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        static_graph=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    criterion = nn.CrossEntropyLoss()
    dataset = counting(options.sequences)
    sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, shuffle=True, drop_last=True)
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=sampler,
        num_workers=WORKERS,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
    )
    log = []
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)  # without it every epoch has the same order
        for step, batch in enumerate(loader):
            loss = one_step(model, batch, optimizer, criterion)
            if rank == 0 and step % LOG_EVERY == 0:
                log.append({"epoch": epoch, "step": step, "loss": loss.item()})
                if not options.json:
                    print(f"epoch {epoch}  step {step:4}  loss {loss.item():.4f}", flush=True)
    return {"backend": options.backend, "ranks": world, "device": device.type, "log": log, "loss": loss.item()}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = launch.parser_for(MODULE, "The usual training script of stock DDP, over ringdp.", 2)
    made.add_argument("--backend", default="ringdp", help="backend of the process group (default %(default)s)")
    made.add_argument("--epochs", type=int, default=2, metavar="N", help="passes over the data (default %(default)s)")
    made.add_argument("--sequences", type=int, default=1024, metavar="N", help="of the data set (default %(default)s)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    made = parser()
    options = made.parse_args(arguments)
    started = launch.started_by_torchrun()
    ranks = int(os.environ["WORLD_SIZE"]) if started else options.nproc
    if options.epochs < 1:
        made.error(f"--epochs is {options.epochs}, must be at least 1")
    if options.sequences < ranks * BATCH:
        made.error(f"--sequences is {options.sequences}, must be at least {BATCH} for each of {ranks} ranks")
    if not started:
        launch.become_torchrun(MODULE, options.nproc, sys.argv[1:])
    try:
        report = train(options, setup(options.backend))
        if dist.get_rank() == 0:
            print(json.dumps(report) if options.json else f"last loss {report['loss']:.4f}", flush=True)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
