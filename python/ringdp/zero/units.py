"""Divides a model into the units of stage 3: parameters that are gathered together, and modules that need them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ringdp.text.units import counted

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
ROOT = "(model)"


@dataclass(frozen=True)
class Unit:
    """Parameters by name, and the names of the modules whose forward needs them ("": the model itself)."""

    name: str
    parameters: tuple[str, ...]
    modules: tuple[str, ...]
    elements: int

    def __str__(self) -> str:
        return f"{self.name}: {self.elements:,} elements in {counted(len(self.parameters), 'parameter')}"


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether stage 3 shards it; integer parameters stay whole."""
    return parameter.is_floating_point() or parameter.is_complex()


def units_of(
    module: nn.Module, chosen: Sequence[nn.Module | type] | None = None, ignored: Collection[str] = ()
) -> list[Unit]:
    """The units in module order, enclosing ones first. A shared parameter belongs to the unit of its first name.

    chosen: modules, or classes of modules, each of which becomes a unit; the rest of the model is one more. Default:
        each child of the model's ModuleLists, ModuleDicts and Sequentials, and each sibling of these containers. A
        child is divided in the same way if it has no forward, or more than half of the model's elements.
    ignored: names of parameters that stay whole. ValueError or TypeError names a wrong entry of `chosen`.
    """
    seats = _chosen(module, chosen) if chosen is not None else list(_divided(module, ignored))
    by_identity = {id(seat): name for name, seat in reversed(seats)}
    members: dict[str, list[str]] = {name: [] for name, _ in seats}
    needed_by = {name: [name] for name, _ in seats}
    home: dict[int, str] = {}
    elements = dict.fromkeys(members, 0)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in ignored or not is_sharded(parameter):
            continue
        around = list(_around(module, name))
        seat = next(by_identity[id(m)] for _, m in around if id(m) in by_identity)
        if id(parameter) not in home:
            home[id(parameter)] = seat
            members[seat].append(name)
            elements[seat] += parameter.numel()
        elif home[id(parameter)] != seat:
            reader = next((n for n, m in around if not _is_forwardless(m)), "")
            if reader not in needed_by[home[id(parameter)]]:
                needed_by[home[id(parameter)]].append(reader)
    return [
        Unit(name or ROOT, tuple(names), tuple(needed_by[name]), elements[name])
        for name, names in members.items()
        if names
    ]


def _around(module: nn.Module, parameter: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules that contain a parameter, the innermost first."""
    path = parameter.split(".")[:-1]
    while path:
        name = ".".join(path)
        yield name, module.get_submodule(name)
        path.pop()
    yield "", module


def _divided(module: nn.Module, ignored: Collection[str]) -> Iterator[tuple[str, nn.Module]]:
    total = _elements(module, ignored)

    def candidates(name: str, candidate: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        forwardless = name != "" and _is_forwardless(candidate)
        if not forwardless:
            yield name, candidate
        large = name == "" or 2 * _elements(candidate, ignored, name + ".") > total
        if forwardless or (large and _has_containers(candidate)):
            for child_name, child in candidate.named_children():
                yield from candidates(f"{name}.{child_name}" if name else child_name, child)

    yield from candidates("", module)


def _elements(module: nn.Module, ignored: Collection[str], prefix: str = "") -> int:
    named = module.named_parameters()
    return sum(p.numel() for n, p in named if is_sharded(p) and prefix + n not in ignored)


def _is_forwardless(module: nn.Module) -> bool:
    """Whether it is a ModuleList, or another module that is never called, so that its hooks do not run."""
    return type(module).forward is nn.Module.forward


def _has_containers(module: nn.Module) -> bool:
    """Whether it is, or contains, a container with parameters."""
    return any(isinstance(m, _CONTAINERS) and any(True for _ in m.parameters()) for m in module.modules())


def _chosen(module: nn.Module, chosen: Sequence[Any]) -> list[tuple[str, nn.Module]]:
    if isinstance(chosen, (nn.Module, type)):
        raise TypeError(f"DistributedDataParallel: units={chosen!r}, must be a list of modules or classes of modules")
    wanted: set[str] = set()
    for choice in chosen:
        named = [
            n for n, m in module.named_modules() if m is choice or (isinstance(choice, type) and isinstance(m, choice))
        ]
        if not (isinstance(choice, nn.Module) or (isinstance(choice, type) and issubclass(choice, nn.Module))):
            raise TypeError(f"DistributedDataParallel: {choice!r} in units is neither a module nor a class of modules")
        if not named:
            what = choice.__name__ if isinstance(choice, type) else f"{type(choice).__name__} {choice!r}"
            raise ValueError(f"DistributedDataParallel: units: the model has no {what}")
        for name in named:
            if name and _is_forwardless(module.get_submodule(name)):
                raise ValueError(
                    f"DistributedDataParallel: units: {name} has no forward, so it is not known when its "
                    "parameters are needed: name the modules in it"
                )
        wanted.update(named)
    return [(name, m) for name, m in module.named_modules() if name == "" or name in wanted]
