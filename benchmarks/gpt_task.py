"""What time_to_loss.py and quality.py train: the examples' GPT on the text of Python's standard library.

The samples of a worker in a step depend on both numbers and a seed only, so every system sees the same ones.
"""

from __future__ import annotations

import torch
from ringdp.examples.gpt import GPT, Shape
from ringdp.examples.train_local import Text


class Task(Text):
    """batch: sequences of a worker in a step. seed: of the start and of the order of samples."""

    def __init__(self, shape: Shape, batch: int, workers: int, seed: int = 0) -> None:
        super().__init__(workers, shape.context, batch, seed)
        self._shape, self._seed = shape, seed

    def model(self) -> GPT:
        """The same in every process."""
        torch.manual_seed(self._seed)
        return GPT(self._shape)
