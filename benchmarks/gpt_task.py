"""What time_to_loss.py and quality.py train: the examples' GPT on the text of Python's standard library.

The samples of a worker in a step depend on both numbers and a seed only, so every system sees the same ones.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from ringdp.elastic.leaves import Leaves
from ringdp.examples.gpt import GPT, Shape, Windows, next_token_loss, read_corpus
from torch import Tensor, nn

TEXT_BYTES = 1 << 20
HELD_OUT = 64  # windows


class Task:
    """batch: sequences of a worker in a step. seed: of the start and of the order of samples."""

    def __init__(self, shape: Shape, batch: int, workers: int, seed: int = 0) -> None:
        corpus = read_corpus(Path(sysconfig.get_path("stdlib")), TEXT_BYTES)
        self._windows = Windows(corpus.train, shape.context, "training")
        held_out = Windows(corpus.validation, shape.context, "held-out")
        self._held_out = torch.stack([held_out[index] for index in range(min(HELD_OUT, len(held_out)))])
        self._samples = Leaves(len(self._windows), micro_batch=batch, micro_batches=workers, seed=seed)
        self._shape, self._seed = shape, seed

    def model(self) -> GPT:
        """The same in every process."""
        torch.manual_seed(self._seed)
        return GPT(self._shape)

    def loss(self, model: nn.Module, worker: int, step: int) -> Tensor:
        """Of the worker's batch in that step."""
        epoch, place = divmod(step, self._samples.steps(0))
        chosen = self._samples.indices(epoch, place, worker)
        return next_token_loss(model, torch.stack([self._windows[index] for index in chosen]))

    @torch.no_grad()
    def held_out_loss(self, model: nn.Module) -> float:
        """Of text that nobody trains on, in nats per byte."""
        return next_token_loss(model, self._held_out).item()
