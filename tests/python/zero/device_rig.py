"""On a rank: trainings with a ZeroOptimizer on the stand-in's device, and the same in one process.

Autograd runs no nodes of that device: gradients are put where a backward pass leaves them.
"""

from __future__ import annotations

from typing import Any

import torch
from native import arrive
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero import native
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import fresh, mlp
from stand_in import StandIn
from torch import nn

ADAMW = {"lr": 1e-2, "weight_decay": 0.1}
MODELS = {"mlp": lambda: mlp(96), "tiny": lambda: nn.Linear(4, 3)}  # shards cut a weight; all but one rank have nothing
BUCKET_MB = 0.02  # several buckets


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Biases do not decay."""
    decaying = [p for p in model.parameters() if p.dim() > 1]
    return [{"params": decaying}, {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]


def gradient(parameter: torch.Tensor, number: int, rank: int, step: int, micro: int) -> torch.Tensor:
    """Of parameter `number`, anybody's; on the CPU."""
    source = torch.Generator().manual_seed(100000 * rank + 1000 * step + 100 * micro + number)
    return torch.randn(parameter.shape, generator=source)


class Training:
    """On this rank's device, with a group of its own. groups: so many of groups_of() are stepped."""

    def __init__(
        self,
        library: str,
        stage: int,
        *,
        model: str = "mlp",
        kind: str = "AdamW",
        executor: str = "SPIN",
        groups: int = 2,
        **given: Any,
    ) -> None:
        self.gpu, _ = arrive(library, executor)
        self.group = self.gpu.new_group()
        module = fresh(MODELS[model]).to(self.gpu.put(torch.zeros(1)).device)
        self.ddp = DistributedDataParallel(module, process_group=self.group, zero_stage=stage, bucket_cap_mb=BUCKET_MB)
        self.optimizer = ZeroOptimizer(groups_of(self.ddp)[:groups], getattr(torch.optim, kind), **given)

    def backward(self, step: int, micros: int = 1, *, ends: bool = True) -> None:
        """What a pass does with gradients, after others under no_sync(). Not `ends`: until the first bucket is full."""
        reducer = self.ddp.reducer
        reducer.prepare_for_forward()
        reducer.prepare_for_backward([])
        for number, parameter in enumerate(self.ddp.parameters()):
            parts = [gradient(parameter, number, HERE.rank, step, micro) for micro in range(micros)]
            parameter.grad = self.gpu.put(in_order(parts))
        if ends:
            reducer.backward_without_loss()
        for index in reducer.layout()[0] if not ends else ():
            reducer.autograd_hook(index)

    def steps(self, first: int, count: int, micros: int = 1) -> None:
        """The plain loop."""
        for step in range(first, first + count):
            self.optimizer.zero_grad()
            self.backward(step, micros)
            self.optimizer.step()

    def found(self) -> dict[str, torch.Tensor]:
        """Parameters, and on rank 0 state, on the CPU. Collective."""
        found = {name: value.cpu() for name, value in self.ddp.full_state_dict().items()}
        self.optimizer.consolidate_state_dict(to=0)
        return {**found, **(state_of(self.optimizer) if HERE.rank == 0 else {})}


def in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    """Their sum."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """By names, on the CPU."""
    entries = optimizer.state_dict()["state"].items()
    return {f"{key} {n}": value.cpu() for n, entry in entries for key, value in entry.items()}


def one_process(
    steps: int, *, gpu: StandIn | None = None, model: str = "mlp", kind: str = "AdamW", micros: int = 1, **given: Any
) -> dict[str, torch.Tensor]:
    """The same for all ranks: by ringdp's kernels on the CPU, or by torch on the device. On any rank."""
    plain = fresh(MODELS[model])
    put = (lambda tensor: tensor) if gpu is None else gpu.put
    plain = plain if gpu is None else plain.to(gpu.put(torch.zeros(1)).device)
    optimizer = getattr(torch.optim, kind)(groups_of(plain), **given)
    for step in range(steps):
        for number, parameter in enumerate(plain.parameters()):
            parts = [[gradient(parameter, number, r, step, m) for m in range(micros)] for r in range(HERE.size)]
            parameter.grad = put(in_order([*map(in_order, parts)]) / HERE.size)
        native.step(optimizer) if gpu is None else optimizer.step()
    found = {name: value.detach().cpu() for name, value in plain.named_parameters()}
    return {**found, **(state_of(optimizer) if HERE.rank == 0 else {})}


def different(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor], *, exact: bool = True) -> list[str]:
    """Names of what is not equal, to the last bit or nearly."""

    def same(a: torch.Tensor, b: torch.Tensor) -> bool:
        if not exact:
            return torch.allclose(a.float(), b.float(), rtol=1e-5, atol=1e-7)
        return torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))

    if found.keys() != right.keys():
        return sorted(found.keys() ^ right.keys())
    return [name for name in right if not same(found[name], right[name])]
