"""`ringdp.check_replicas(model)`: whether every rank holds the same bits, and if not, where the first difference is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ringdp import _native
from ringdp.gather_objects import gather_objects
from ringdp.text.units import counted, names

BLOCK = 1 << 16  # bytes that are looked for together, and exchanged at the end


@dataclass(frozen=True)
class Difference:
    """One tensor that is not the same everywhere.

    ranks: those of the group that do not hold what most do; all of them when no value has a majority (two ranks).
    element, values: of the first tensor that differs: the flat index of its first differing element, and by rank what
    is there; None for later tensors.
    """

    name: str
    ranks: tuple[int, ...]
    element: int | None = None
    values: tuple[float | complex | int | bool, ...] | None = None

    def __str__(self) -> str:
        where = ""
        if self.values is not None:
            where = f"; first at element {self.element}, by rank: {', '.join(map(repr, self.values))}"
        return f"{self.name} differs on {names(self.ranks)}{where}"


@dataclass(frozen=True)
class Replicas:
    """What check_replicas() found; true when all ranks hold the same."""

    tensors: int
    bytes: int
    differences: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        head = f"{counted(self.tensors, 'tensor')} of {counted(self.bytes, 'byte')}"
        if self:
            return f"{head} are the same on all ranks"
        return "\n".join([f"{len(self.differences)} of {head} differ:", *map(str, self.differences)])


def check_replicas(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, group: dist.ProcessGroup | None = None
) -> Replicas:
    """Compares the bits of all parameters and of the optimizer's state over the ranks of `group` (default: the world).

    Of the state: tensors and numbers, also those in lists, tuples and dicts.

    Collective; any backend, any device. Reads everything once and sends 8 bytes per tensor; only where something
    differs, a little more. Buffers are not compared: BatchNorm's differ between ranks until the next forward pass.
    NotImplementedError names what holds shards: shards are no replicas. RuntimeError when the ranks have other tensors.
    """
    group = dist.group.WORLD if group is None else group
    tensors = dict(_tensors_of(model, optimizer))
    own = [(name, tuple(t.shape), str(t.dtype), _checksum(t)) for name, t in tensors.items()]
    everyone = gather_objects(own, group)
    _check_same_tensors([[row[:3] for row in rows] for rows in everyone])
    differences: list[Difference] = []
    for number, (name, tensor) in enumerate(tensors.items()):
        ranks = _odd_ranks([rows[number][3] for rows in everyone])
        if ranks:
            first = () if differences else _first_element(tensor, group)
            differences.append(Difference(name, ranks, *first))
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    return Replicas(len(tensors), size, tuple(differences))


def _tensors_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[str, torch.Tensor]]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise NotImplementedError("check_replicas: FullyShardedDataParallel shards parameters: no rank holds a replica")
    if getattr(model, "zero_stage", 0) == 3:
        raise NotImplementedError("check_replicas: zero_stage=3 shards parameters, so no rank holds a replica")
    names: dict[torch.Tensor, str] = {}
    for name, parameter in model.named_parameters():
        if type(parameter.data) is not torch.Tensor:
            raise NotImplementedError(
                f"check_replicas: parameter {name} is a {type(parameter.data).__name__}, which may be a shard: "
                "only plain tensors are compared"
            )
        names[parameter] = name.removeprefix("module.")
        yield names[parameter], parameter.detach()
    if optimizer is not None:
        yield from _state_of(optimizer, names)


def _state_of(optimizer: torch.optim.Optimizer, names: Mapping[Any, str]) -> Iterator[tuple[str, torch.Tensor]]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from ringdp.zero.optimizer import ZeroOptimizer

    if isinstance(optimizer, (ZeroOptimizer, ZeroRedundancyOptimizer)):
        name = type(optimizer).__name__
        raise NotImplementedError(f"check_replicas: {name} shards its state: leave the optimizer out")
    parameters = [p for settings in optimizer.param_groups for p in settings["params"]]
    for number, parameter in enumerate(parameters):
        name = names.get(parameter, f"parameter {number} of the optimizer")
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            for place, tensor in _leaves(value):
                yield f"{key}{place} of {name}", tensor


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors and numbers in it, each with its place: '[0][max]'. Text and None are no state that is computed."""
    if isinstance(value, (torch.Tensor, bool, int, float)):
        yield place, torch.as_tensor(value).detach()
    elif isinstance(value, (list, tuple, Mapping)):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(item, f"{place}[{key}]")


def _checksum(tensor: torch.Tensor) -> int:
    return _native.load().checksum(tensor.cpu().contiguous())


def _odd_ranks(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(_native.load().odd_ranks(list(values)))


def _check_same_tensors(everyone: Sequence[Sequence[object]]) -> None:
    """RuntimeError names the first tensor that another rank does not have."""
    for rank, rows in enumerate(everyone):
        if len(rows) != len(everyone[0]):
            raise RuntimeError(
                f"check_replicas: rank 0 has {counted(len(everyone[0]), 'tensor')}, rank {rank} has {len(rows)}"
            )
        for own, other in zip(everyone[0], rows, strict=True):
            if own != other:
                raise RuntimeError(f"check_replicas: rank 0 has {own} where rank {rank} has {other}")


def _first_element(tensor: torch.Tensor, group: dist.ProcessGroup) -> tuple[int, tuple[Any, ...]]:
    """Index and values, by rank, of the first element whose bits differ."""
    raw = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
    blocks = raw.split(BLOCK)
    sums = gather_objects([_checksum(block) for block in blocks], group)
    block = next(i for i in range(len(blocks)) if len({s[i] for s in sums}) > 1)
    everyone = gather_objects(bytes(blocks[block].tolist()), group)
    parts = [torch.frombuffer(bytearray(part), dtype=tensor.dtype) for part in everyone]
    bits = [part.view(torch.uint8).reshape(-1, tensor.element_size()) for part in parts]
    differs = torch.stack([(bits[0] != other).any(dim=1) for other in bits[1:]]).any(dim=0)
    at = int(differs.nonzero()[0])
    return block * BLOCK // tensor.element_size() + at, tuple(part[at].item() for part in parts)
