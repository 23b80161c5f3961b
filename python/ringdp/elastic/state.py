"""The state of a rank that trains, sent to one that joins: trees of tensors and plain values, checked by a hash.

The values are written by torch.save with tensors without memory, and read with weights_only; then each tensor follows
from the memory in which it lies, so that nothing is held twice.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree

from ringdp.zero.regroup import as_bytes, from_bytes

_HASH_BYTES = 32


class WithoutShards:
    """What a model at zero_stage=3 has besides parameters in shards."""

    def __init__(self, ddp: Any) -> None:
        self._module, self._sharded = ddp.module, ddp.sharded_model.sharded_names

    def state_dict(self) -> list[dict[str, Any]]:
        """Its whole parameters and its buffers."""
        return [self._rest(), dict(self._module.named_buffers())]

    @torch.no_grad()
    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """The inverse of state_dict(). Values are copied: load_state_dict() of the model would write shards."""
        for given, own in zip(state, self.state_dict(), strict=True):
            for name, value in own.items():
                if isinstance(value, torch.Tensor):
                    value.copy_(given[name])
                elif name.endswith("_extra_state"):
                    self._module.get_submodule(name.rpartition(".")[0]).set_extra_state(given[name])

    def _rest(self) -> dict[str, Any]:
        whole = self._module.state_dict(keep_vars=True)
        in_shards = {id(p) for n, p in self._module.named_parameters(remove_duplicate=False) if n in self._sharded}
        return {name: value for name, value in whole.items() if id(value) not in in_shards}


def hand_on(parts: Sequence[Any], has_state: Sequence[bool]) -> bool:
    """Ranks without a state get it, each from one of those that have one. Whether this one did. Collective."""
    rank = dist.get_rank()
    sources = [r for r, has in enumerate(has_state) if has]
    newcomers = [r for r, has in enumerate(has_state) if not has]
    for number, newcomer in enumerate(newcomers):
        source = sources[number % len(sources)]
        if rank == source:
            send(parts, newcomer)
        elif rank == newcomer:
            receive(parts, source)
    return rank in newcomers


def send(parts: Sequence[Any], to: int) -> None:
    """What state_dict() of each part has, to a rank of the default group, which calls receive()."""
    for message in messages(_states(parts)):
        dist.send(message, to)


def messages(value: Any) -> Iterator[torch.Tensor]:
    """What a rank sends, in this order, so that another one's received() has a tree of tensors and plain values."""
    header, flats = packed(value)
    digest = hashlib.sha256(header.numpy().data)
    yield torch.tensor(len(header))
    yield header
    for flat in flats:
        yield flat
        _add(digest, flat)
    yield torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def received(source: int) -> Any:
    """What a rank of the default group sends. RuntimeError where what arrives is not what was sent."""
    length = torch.tensor(0)
    dist.recv(length, source)
    header = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(header, source)
    digest = hashlib.sha256(header.numpy().data)
    value, flats = unpacked(header)
    for flat in flats:
        dist.recv(flat, source)
        _add(digest, flat)
    sent = torch.empty(_HASH_BYTES, dtype=torch.uint8)
    dist.recv(sent, source)
    if bytes(sent.tolist()) != digest.digest():
        raise RuntimeError(
            f"ringdp.elastic: the state that rank {source} has sent has changed on its way: a memory error"
        )
    return value


def receive(parts: Sequence[Any], source: int) -> None:
    """Into load_state_dict() of each part.

    RuntimeError where what arrives is not what was sent, or where a part has another state after it was loaded: an
    optimizer that changes the type of what it is given.
    """
    states = received(source)
    for part, state in zip(parts, states, strict=True):
        _load(part, state)
    for part, state, now in zip(parts, states, _states(parts), strict=True):
        if _bits(state) != _bits(now):
            raise RuntimeError(
                f"ringdp.elastic: a {type(part).__name__} has another state after load_state_dict() than the one that "
                "it was given, so this rank would compute other bits: it cannot join"
            )


def packed(value: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A tree of tensors and plain values: what unpacked() needs, and the bytes of each tensor that has some."""
    values, tree = _pytree.tree_flatten(value)
    values = [_without_gaps(value) if isinstance(value, torch.Tensor) else value for value in values]
    without_memory = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in values]
    header = as_bytes(_pytree.tree_unflatten(without_memory, tree))
    return header, [_in_memory_order(value) for value in values if isinstance(value, torch.Tensor) and value.numel()]


def unpacked(header: torch.Tensor) -> tuple[Any, list[torch.Tensor]]:
    """The tree, and the bytes of each tensor, which the caller fills."""
    values, tree = _pytree.tree_flatten(from_bytes(header))
    flats = []
    for number, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            values[number] = whole = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            if whole.numel():
                flats.append(_in_memory_order(whole))
    return _pytree.tree_unflatten(values, tree), flats


def _states(parts: Sequence[Any]) -> list[Any]:
    return [_state_of(part) for part in parts]


def _state_of(part: Any) -> Any:
    """Of a module also the buffers that its state_dict() leaves out."""
    if not isinstance(part, torch.nn.Module):
        return part.state_dict()
    return [part.state_dict(), dict(part.named_buffers())]


@torch.no_grad()
def _load(part: Any, state: Any) -> None:
    if not isinstance(part, torch.nn.Module):
        part.load_state_dict(state)
        return
    values, buffers = state
    part.load_state_dict(values)
    for name, buffer in part.named_buffers():
        buffer.copy_(buffers[name])


def _bits(state: Any) -> list[Any]:
    """What is equal only where all bits are."""
    values, tree = _pytree.tree_flatten(state)
    return [str(tree), *(_bits_of(value) if isinstance(value, torch.Tensor) else repr(value) for value in values)]


def _bits_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    digest = hashlib.sha256()
    add_bits(digest, tensor)
    return tensor.dtype, tensor.shape, digest.digest()


def add_bits(digest: Any, tensor: torch.Tensor) -> None:
    """Adds the values of a tensor on the CPU to a hash."""
    _add(digest, tensor.detach().contiguous().view(-1))


def _without_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """Itself, or a copy with the strides of torch.empty_like(), which fills memory."""
    tensor = tensor.detach()
    is_dense = tensor.stride() == torch.empty_like(tensor, device="meta").stride()
    return tensor if is_dense else torch.empty_like(tensor).copy_(tensor)


def _in_memory_order(dense: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor without gaps, as bytes."""
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def _add(digest: Any, flat: torch.Tensor) -> None:
    """The bytes of a tensor without gaps."""
    digest.update((ctypes.c_ubyte * flat.nbytes).from_address(flat.data_ptr()) if flat.nbytes else b"")
