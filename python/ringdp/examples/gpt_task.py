"""What workers train in examples and benchmarks: the GPT on the text of Python's standard library.

The samples of a worker in a step depend on both numbers and a seed only, so every way to train sees the same ones.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn

from ringdp.elastic import Leaves
from ringdp.examples.gpt import GPT, Shape, Windows, next_token_loss, read_corpus

TEXT_BYTES, HELD_OUT = 1 << 20, 64


class Task:
    """A model, what each worker reads in each step, and what none of them reads.

    batch: sequences of a worker in a step. seed: of the model's start and of the order of samples. held_out: how many
    sequences are judged, or fewer where the text has no more.
    """

    def __init__(self, shape: Shape, batch: int, workers: int, seed: int = 0, held_out: int = HELD_OUT) -> None:
        self.corpus = read_corpus(Path(sysconfig.get_path("stdlib")), TEXT_BYTES)
        self._windows = Windows(self.corpus.train, shape.context, "training")
        validation = Windows(self.corpus.validation, shape.context, "validation")
        self._held_out = [validation[index] for index in range(min(held_out, len(validation)))]
        self._samples = Leaves(len(self._windows), micro_batch=batch, micro_batches=workers, seed=seed)
        self._shape, self._seed = shape, seed

    def model(self) -> GPT:
        """The same in every process."""
        torch.manual_seed(self._seed)
        return GPT(self._shape)

    def loss(self, model: nn.Module, worker: int, step: int) -> Tensor:
        """Of a worker's batch in a step; a pure function of both."""
        epoch, place = divmod(step, self._samples.steps(0))
        chosen = self._samples.indices(epoch, place, worker)
        return next_token_loss(model, torch.stack([self._windows[index] for index in chosen]))

    @torch.no_grad()
    def held_out_loss(self, model: nn.Module) -> float:
        """Of text that is not trained on, in nats per byte."""
        model.eval()
        loss = next_token_loss(model, torch.stack(self._held_out)).item()
        model.train()
        return loss
