"""Converts optimizer state between shards and the whole form that torch's own optimizers save and load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ringdp.gather_objects import gather_objects
from ringdp.zero.element_wise import is_number, is_per_element
from ringdp.zero.flat import FlatParameters, in_memory_order, shaped

MASTER = "master"  # the float32 copy of a 16-bit parameter
Indices = Mapping[torch.Tensor, int]
Entry = dict[str, Any]


def consolidated(
    flats: Sequence[FlatParameters], optimizer: Optimizer, indices: Indices, group: dist.ProcessGroup, to: int
) -> dict[int, Entry] | None:
    """Collective: on rank `to` the state by parameter number, on the CPU; None on other ranks.

    At most one bucket of one kind of state is gathered at a time. ValueError if `to` is not a rank.
    """
    if not 0 <= to < group.size():
        raise ValueError(f"consolidate_state_dict: to={to}, must be a rank of 0..{group.size() - 1}")
    result: dict[int, Entry] = {}
    for flat in flats:
        kinds, numbers = _agreed(flat, optimizer, indices, group)
        for index, entry in numbers.items():
            result.setdefault(index, {}).update(entry)
        for bucket, key, dtype, holders in kinds:
            whole = _gathered(flat, optimizer, bucket, key, dtype, group, to)
            if whole is not None:
                _take_apart(flat, indices, bucket, key, whole, set(holders), result)
    return dict(sorted(result.items())) if group.rank() == to else None


def first_state(
    optimizer_class: Callable[..., Optimizer], groups: Sequence[Entry], unstepped: set[torch.Tensor], indices: Indices
) -> dict[int, Entry]:
    """The state of parameters that no rank steps as a new optimizer has it (e.g. Adagrad's sums), on the CPU."""
    given = [{**g, "params": [p for p in g["params"] if p in unstepped]} for g in groups]
    given = [{k: v for k, v in g.items() if k != "param_names"} for g in given if g["params"]]
    state = optimizer_class(given).state if given else {}
    return {
        number: {k: v.cpu() if torch.is_tensor(v) else v for k, v in state[parameter].items()}
        for parameter, number in indices.items()
        if parameter in state
    }


def numbered(state_dict: Mapping[str, Any], groups: Sequence[Entry]) -> dict[int, Entry]:
    """The saved state by the numbers of this optimizer's parameters, matched by position in the groups as in torch.

    ValueError if the sizes of groups or the shapes of state tensors differ.
    """
    saved, own = ([len(group["params"]) for group in side] for side in (state_dict["param_groups"], groups))
    if saved != own:
        raise ValueError(
            f"ZeroOptimizer: the state dict has {len(saved)} param groups, of {saved} parameters, and this optimizer "
            f"{len(own)}, of {own}: make the groups as they were when it was saved"
        )
    keys = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in groups)
    names = chain.from_iterable(group.get("param_names", [""] * len(group["params"])) for group in groups)
    found: dict[int, Entry] = {}
    for number, (key, parameter, name) in enumerate(zip(keys, parameters, names, strict=True)):
        if key in state_dict["state"]:
            found[number] = state_dict["state"][key]
            _check_shapes(found[number], parameter, f"{number} ({name})" if name else str(number))
    return found


def _check_shapes(entry: Entry, parameter: torch.Tensor, which: str) -> None:
    for key, value in entry.items():
        if not torch.is_tensor(value) or is_per_element(key, value.shape, parameter.shape):
            continue
        if key == MASTER or not is_number(key, value.shape):
            raise ValueError(
                f"ZeroOptimizer: {key} of parameter {which} has shape {list(value.shape)} in the state dict, and the "
                f"parameter {list(parameter.shape)}: load the state of the same model"
            )


def restored(
    state: Mapping[int, Entry], flats: Sequence[FlatParameters], optimizer: Optimizer, indices: Indices
) -> None:
    """Loads into every piece its part of a whole state."""
    number_of = {t: n for n, t in enumerate(t for group in optimizer.param_groups for t in group["params"])}
    mine: dict[int, Entry] = {}
    for flat in flats:
        for piece, tensor in zip(flat.pieces, flat.tensors, strict=True):
            parameter = flat.parameters[piece.parameter]
            if parameter not in indices or indices[parameter] not in state or tensor not in number_of:
                continue
            entry = dict(state[indices[parameter]])
            fp32_copy = entry.pop(MASTER, None)
            if fp32_copy is not None and flat.fp32_copies[piece.bucket] is not None:
                tensor.data.copy_(in_memory_order(fp32_copy, parameter)[piece.part])
            mine[number_of[tensor]] = {k: _part(k, v, parameter, piece.part) for k, v in entry.items()}
    optimizer.load_state_dict({"state": mine, "param_groups": optimizer.state_dict()["param_groups"]})


def _part(key: str, value: Any, parameter: torch.Tensor, part: slice) -> Any:
    if not torch.is_tensor(value):
        return value
    if is_per_element(key, value.shape, parameter.shape):
        return in_memory_order(value, parameter)[part].clone()
    return value.clone()


def _entry(flat: FlatParameters, optimizer: Optimizer, number: int) -> Entry:
    """The state of a piece, with its fp32 copy."""
    tensor, piece = flat.tensors[number], flat.pieces[number]
    entry = dict(optimizer.state.get(tensor, {}))
    if flat.fp32_copies[piece.bucket] is not None:
        entry[MASTER] = tensor.detach()
    return entry


def _was_stepped(flat: FlatParameters, number: int, entry: Entry) -> bool:
    """Whether a piece has a state: that of a class, or an fp32 copy that says more than the parameter."""
    if entry.keys() > {MASTER} or MASTER not in entry:
        return bool(entry)
    piece = flat.pieces[number]
    rounded = flat.own(piece.bucket)[piece.place]
    return not torch.equal(rounded.to(entry[MASTER].dtype), entry[MASTER])


def _agreed(
    flat: FlatParameters, optimizer: Optimizer, indices: Indices, group: dist.ProcessGroup
) -> tuple[list[tuple[int, str, torch.dtype, tuple[int, ...]]], dict[int, Entry]]:
    """Collective: which per-element state exists (bucket, key, dtype, parameters), and all other state by parameter."""
    own: list[tuple[int, int, int, bool, dict[str, torch.dtype], Entry]] = []
    for number, piece in enumerate(flat.pieces):
        entry = _entry(flat, optimizer, number)
        if not entry:
            continue
        shape = flat.tensors[number].shape
        tensors = {k: v for k, v in entry.items() if torch.is_tensor(v)}
        dtypes = {k: v.dtype for k, v in tensors.items() if is_per_element(k, v.shape, shape)}
        rest = {k: v.cpu() if torch.is_tensor(v) else v for k, v in entry.items() if k not in dtypes}
        stepped = _was_stepped(flat, number, entry)
        own.append((piece.bucket, piece.parameter, indices[flat.parameters[piece.parameter]], stepped, dtypes, rest))
    holders: dict[tuple[int, str, torch.dtype], set[int]] = {}
    numbers: dict[int, Entry] = {}
    said = list(chain.from_iterable(gather_objects(own, group)))
    stepped_parts = {index for _, _, index, stepped, _, _ in said if stepped}  # of parameters: one rank is enough
    for bucket, parameter, index, _, dtypes, rest in said:
        if index not in stepped_parts:
            continue
        numbers[index] = rest
        for key, dtype in dtypes.items():
            holders.setdefault((bucket, key, dtype), set()).add(parameter)
    order = sorted(holders, key=str)
    return [(*kind, tuple(sorted(holders[kind]))) for kind in order], numbers


def _gathered(
    flat: FlatParameters,
    optimizer: Optimizer,
    bucket: int,
    key: str,
    dtype: torch.dtype,
    group: dist.ProcessGroup,
    to: int,
) -> torch.Tensor | None:
    """One kind of state of a whole bucket, on rank `to`."""
    own = torch.zeros(flat.layout.shard(bucket), dtype=dtype, device=flat.own(bucket).device)
    for number in flat.in_bucket(bucket):
        value = _entry(flat, optimizer, number).get(key)
        if torch.is_tensor(value) and value.dtype == dtype:
            own[flat.pieces[number].place].copy_(value)
    if group.size() == 1:
        return own.cpu()
    raw = own.view(torch.uint8)  # backends differ in the types they gather
    parts = [torch.empty_like(raw) for _ in range(group.size())] if group.rank() == to else None
    dist.gather(raw, parts, group=group, group_dst=to)
    return torch.cat(parts).view(dtype).cpu() if parts is not None else None


def _take_apart(
    flat: FlatParameters,
    indices: Indices,
    bucket: int,
    key: str,
    whole: torch.Tensor,
    holders: set[int],
    result: dict[int, Entry],
) -> None:
    members = flat.layout.buckets[bucket]
    for parameter_number, offset in zip(members, flat.layout.offsets(bucket), strict=True):
        if parameter_number in holders:
            parameter = flat.parameters[parameter_number]
            part = whole[offset : offset + parameter.numel()].clone()
            result[indices[parameter]][key] = shaped(part, parameter)
