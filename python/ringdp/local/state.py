"""The state of a DiLoCo as a value: each rank's part by numbers of workers, and those of all ranks together.

    {"settings": ..., "steps": ...,                                          equal on all ranks
     "outer": {parameter: float32}, "momentum": {parameter: float32},        equal on all ranks
     "workers": {number: {"parameters": {...}, "buffers": {...}, "inner": [state dicts], "kinds": [their classes],
                          "residual": {...}, "begun": {...}, "made": {"steps": ...}}},   the last two with a quorum
     "log": [[(worker, which of its rounds)] by outer step],                  equal on all ranks
     "on_the_way": {fragment: [(offset, means)]}, "residual": {fragment: [(offset, what codes of means left out)]}}

Of the last two each rank has the stretches that it owns. Parameters have names, buffers too, fragments numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree

from ringdp.compress.exchange import Arrived
from ringdp.local.meetings import Meetings, OnTheWay
from ringdp.local.options import Options
from ringdp.text.units import names

# What a state depends on; rates and mixing may change from run to run.
_FIXED = ("workers", "every", "start", "fragments", "delay", "compress")
STRETCHES = ("on_the_way", "residual")
OF_WORKER = {"parameters": "parameter", "buffers": "buffer", "residual": "residual", "begun": "begun", "made": "made"}
State = dict[str, Any]


def settings_of(options: Options) -> dict[str, Any]:
    """Those that the run that loads must have, too."""
    return {**{name: getattr(options, name) for name in _FIXED}, "has_quorum": options.quorum is not None}


def of_rank(meetings: Meetings) -> State:
    """This rank's part; the tensors are the running ones. Waits for what is on its way."""
    workers, outer = meetings.workers, meetings.outer
    return {
        "settings": settings_of(meetings.options),
        "steps": meetings.steps,
        "log": [list(composition) for composition in meetings.log],
        "outer": by_name(meetings, outer.parameters),
        "momentum": by_name(meetings, outer.momentum),
        "workers": {worker: of_worker(meetings, worker) for worker in workers},
        "on_the_way": {number: [it.exchange.own_means()] for number, it in meetings.on_the_way.items()},
        "residual": {
            number: [(meetings.own_shard(number)[0], own)] for number, own in enumerate(meetings.mean_residuals)
        },
    }


def of_worker(meetings: Meetings, worker: int) -> State:
    """Of one that this rank plays; the tensors are the running ones."""
    workers = meetings.workers
    values, buffers = workers.values(worker), workers.buffers(worker)
    return {
        "parameters": {name: values[number] for f in meetings.fragments for number, name in f.named()},
        "buffers": dict(zip(buffer_names(meetings), buffers, strict=True)),
        "inner": [optimizer.state_dict() for optimizer in workers[worker].optimizers],
        "kinds": [type(optimizer).__name__ for optimizer in workers[worker].optimizers],
        "residual": by_name(meetings, workers[worker].residuals),
        "begun": by_name(meetings, workers[worker].begun),
        "made": {} if (made := workers[worker].made) is None else {"steps": made},
    }


def buffer_names(meetings: Meetings) -> list[str]:
    """In the order in which workers have them."""
    return [name for name, _ in meetings.workers.model.named_buffers()]


def merged(states: Sequence[Mapping[str, Any]]) -> State:
    """One state of those of all ranks. ValueError where they are not of one moment, or overlap."""
    if not states:
        raise ValueError("DiLoCo.load_state_dict: no state is given: give those of all ranks that have saved")
    first = states[0]
    whole: State = {**first, "workers": {}, **{kind: {} for kind in STRETCHES}}
    for place, one in enumerate(states):
        for what in ("settings", "steps", "log"):
            if one.get(what) != first.get(what):
                raise ValueError(
                    f"DiLoCo.load_state_dict: the states are not of one moment: number 0 has {what} {first.get(what)}, "
                    f"number {place} {one.get(what)}"
                )
        if twice := whole["workers"].keys() & one["workers"].keys():
            raise ValueError(f"DiLoCo.load_state_dict: {names(twice, 'worker')} twice among the states")
        whole["workers"].update(one["workers"])
        for kind in STRETCHES:
            for fragment, stretches in one[kind].items():
                whole[kind].setdefault(fragment, []).extend(stretches)
    return whole


def checked(meetings: Meetings, state: State) -> State:
    """The state, of all ranks, with its stretches laid end to end. ValueError names what does not fit this rank."""
    check_settings(meetings.options, state["settings"])
    for kind in ("outer", "momentum"):
        _check_fit(kind, state[kind], by_name(meetings, meetings.outer.parameters))
    for worker in meetings.workers:
        if worker not in state["workers"]:
            raise ValueError(
                f"DiLoCo.load_state_dict: worker {worker} is in none of the states: give those of all ranks"
            )
        own = of_worker(meetings, worker)
        for kind in OF_WORKER:
            _check_fit(f"{kind} of worker {worker}", state["workers"][worker].get(kind, {}), own[kind])
        _check_inner(worker, state["workers"][worker], own)
    leaving = meetings.schedule.on_the_way(state["steps"])
    expected = {"on_the_way": list(leaving), "residual": range(len(meetings.mean_residuals))}
    ends = {
        kind: {number: _whole(state[kind].get(number, []), meetings, number, kind) for number in numbers}
        for kind, numbers in expected.items()
    }
    return {**state, **ends}


def check_settings(options: Options, settings: Mapping[str, Any]) -> None:
    """ValueError names the first one that this run has otherwise."""
    for name, own in settings_of(options).items():
        if own != (saved := settings.get(name, False)):  # has_quorum is not in older ones
            raise ValueError(f"DiLoCo: the state is of {name}={saved!r}, this run has {name}={own!r}")


@torch.no_grad()
def adopt(meetings: Meetings, state: State) -> None:
    """Takes a checked state, by copying; but for the inner optimizers."""
    workers = meetings.workers
    workers.drop_gradients()
    for kind, flats in (("outer", meetings.outer.parameters), ("momentum", meetings.outer.momentum)):
        _fill(by_name(meetings, flats), state[kind])
    for worker in workers:
        adopt_worker(meetings, worker, state["workers"][worker])
    for number, residuals in enumerate(meetings.mean_residuals):
        offset, length = meetings.own_shard(number)
        residuals.copy_(state["residual"][number][offset : offset + length])
    meetings.on_the_way = {
        number: OnTheWay(None, Arrived(mean.to(meetings.device, copy=True), meetings.own_shard(number)))
        for number, mean in state["on_the_way"].items()
    }
    meetings.steps, meetings.faults = state["steps"], []
    meetings.adopted(state)


@torch.no_grad()
def adopt_worker(meetings: Meetings, worker: int, its: Mapping[str, Any]) -> None:
    """What of_worker() has given, by copying; but for the inner optimizers."""
    own = of_worker(meetings, worker)
    for kind in OF_WORKER:
        _fill(own[kind], its.get(kind, {}))


def adopt_inner(meetings: Meetings, worker: int, its: Mapping[str, Any]) -> None:
    """The inner optimizers of what of_worker() has given. Copies, as torch's would share memory with it."""
    for optimizer, one in zip(meetings.workers[worker].optimizers, its["inner"], strict=True):
        optimizer.load_state_dict(copy.deepcopy(one))
        _keep_types(optimizer, one)


def _keep_types(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """load_state_dict() casts all but `step` to the parameter's type, also what an optimizer holds in a wider one."""
    groups = zip(optimizer.param_groups, saved["param_groups"], strict=True)
    pairs = (pair for own, its in groups for pair in zip(own["params"], its["params"], strict=True))
    for parameter, number in pairs:
        own = optimizer.state.get(parameter, {})
        for name, value in saved["state"].get(number, {}).items():
            if name != "step" and name in own:
                own[name] = _pytree.tree_map(_of_type, own[name], value)


def _of_type(cast: Any, value: Any) -> Any:
    is_cast = isinstance(value, Tensor) and isinstance(cast, Tensor) and cast.dtype != value.dtype
    return value.to(cast.device, copy=True) if is_cast else cast


def by_name(meetings: Meetings, flats: Sequence[Tensor]) -> dict[str, Tensor]:
    """Flat tensors of fragments, by parameter; nothing of none."""
    pairs = zip(meetings.fragments, flats, strict=True) if flats else ()
    return {name: view for fragment, flat in pairs for _, name, view in fragment.views(flat)}


def _fill(own: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, tensor in own.items():
        tensor.copy_(values[name])


def _check_fit(what: str, saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    here, there = ({name: (t.dtype, tuple(t.shape)) for name, t in each.items()} for each in (own, saved))
    for name in sorted({*here, *there}):
        if here.get(name) != there.get(name):
            raise ValueError(
                f"DiLoCo: {what}: {name} is {_described(there.get(name))} in the state, "
                f"{_described(here.get(name))} in this model"
            )


def _described(found: tuple[torch.dtype, tuple[int, ...]] | None) -> str:
    return "not there" if found is None else f"{str(found[0]).removeprefix('torch.')} {list(found[1])}"


def _check_inner(worker: int, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    kinds = saved.get("kinds", own["kinds"])  # older states do not have them
    if kinds != own["kinds"]:
        raise ValueError(
            f"DiLoCo: the inner optimizers of worker {worker} are {', '.join(kinds)} in the state, "
            f"{', '.join(own['kinds'])} in this run"
        )
    here, there = ([[len(g["params"]) for g in one["param_groups"]] for one in each["inner"]] for each in (own, saved))
    if here != there:
        raise ValueError(
            f"DiLoCo: the inner optimizers of worker {worker} have groups of {there} parameters in the state, "
            f"{here} in this run"
        )


def _whole(stretches: Sequence[tuple[int, Tensor]], meetings: Meetings, number: int, kind: str) -> Tensor:
    """Laid end to end."""
    elements, at, parts = meetings.fragments[number].elements, 0, []
    for offset, part in sorted(stretches, key=lambda stretch: (stretch[0], len(stretch[1]))):
        if offset == at:
            parts.append(part)
            at += len(part)
    if at != elements:
        raise ValueError(
            f"DiLoCo.load_state_dict: elements {at} to {elements} of fragment {number} are missing in {kind}: give the "
            "states of all ranks"
        )
    return torch.cat(parts)
