"""AdamW steps of torch and of ringdp on the same parameters and gradients, in one process, taking turns."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from ringdp import ZeroOptimizer
from torch.optim import AdamW, Optimizer

TORCH, TORCH_FUSED, OURS, OURS_FUSED = "torch", "torch fused", "ringdp", "ringdp fused"
SETTINGS = {"lr": 1e-3, "weight_decay": 0.1}
MAKERS: dict[str, Callable[[list[torch.nn.Parameter]], Optimizer]] = {
    TORCH: lambda parameters: AdamW(parameters, foreach=False, fused=False, **SETTINGS),
    TORCH_FUSED: lambda parameters: AdamW(parameters, fused=True, **SETTINGS),
    OURS: lambda parameters: ZeroOptimizer(parameters, AdamW, **SETTINGS),
    OURS_FUSED: lambda parameters: ZeroOptimizer(parameters, AdamW, fused=True, **SETTINGS),
}
WARM_UP = 2  # rounds: state is made, pages are touched


class Candidate:
    """One optimizer with its own copy of the parameters."""

    def __init__(self, name: str, values: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        self.parameters = [torch.nn.Parameter(value.clone()) for value in values]
        self.optimizer = MAKERS[name](self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient  # no optimizer here writes into it

    def step(self) -> float:
        """Its seconds."""
        start = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - start


def measure(parameters: int, tensors: int, rounds: int) -> tuple[dict[str, list[float]], bool]:
    """Seconds of every candidate by round, on one thread; whether ringdp's default ends with torch's bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("ringdp", store=dist.HashStore(), rank=0, world_size=1)
    try:
        source = torch.Generator().manual_seed(0)
        parts = [parameters * (i + 1) // tensors - parameters * i // tensors for i in range(tensors)]
        values = [torch.randn(part, generator=source) for part in parts]
        gradients = [torch.randn(part, generator=source) for part in parts]
        candidates = {name: Candidate(name, values, gradients) for name in MAKERS}
        seconds: dict[str, list[float]] = {name: [] for name in candidates}
        for number in range(-WARM_UP, rounds):
            for name in random.Random(number).sample(sorted(candidates), len(candidates)):
                took = candidates[name].step()
                if number >= 0:
                    seconds[name].append(took)
        same = all(map(torch.equal, candidates[OURS].parameters, candidates[TORCH].parameters))
    finally:
        dist.destroy_process_group()
        torch.set_num_threads(threads)
    return seconds, same
