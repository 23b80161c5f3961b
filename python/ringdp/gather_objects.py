"""Gathers objects of all ranks, as dist.all_gather_object does, and finds bits that have changed on their way.

A link without CRCs (RINGDP_CHECK=off), a network card or a rank's memory may change one. What is unpickled then raises
any error, or none.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import torch
import torch.distributed as dist

_DIGEST_BYTES = 16
_LENGTH_BYTES = 8


def gather_objects(value: Any, group: dist.ProcessGroup) -> list[Any]:
    """Collective: the `value` of every rank of `group`. RuntimeError names the rank whose bytes have changed.

    Values can be pickled; this rank's own comes back as a copy. Two all_gathers, as of torch.
    """
    payload = _sealed(pickle.dumps(value))
    lengths = [
        int.from_bytes(_opened(sealed, rank), "little")
        for rank, sealed in enumerate(_gather(_sealed(len(payload).to_bytes(_LENGTH_BYTES, "little")), group))
    ]
    padded = _gather(payload.ljust(max(lengths), b"\0"), group)
    by_rank = zip(padded, lengths, strict=True)
    return [pickle.loads(_opened(sealed[:length], rank)) for rank, (sealed, length) in enumerate(by_rank)]


def device_of(group: dist.ProcessGroup) -> torch.device:
    """Where a group gathers bytes that a program has in memory: on the CPU, if it serves it."""
    kinds = {kind.type: kind for kind in group._device_types}
    return kinds.get("cpu") or next(iter(kinds.values()))


def _gather(own: bytes, group: dist.ProcessGroup) -> list[bytes]:
    """Collective: as many bytes of every rank."""
    tensor = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(device_of(group))
    by_rank = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(by_rank, tensor, group=group)
    buffers = [bytearray(len(own)) for _ in by_rank]
    for buffer, theirs in zip(buffers, by_rank, strict=True):
        torch.frombuffer(buffer, dtype=torch.uint8).copy_(theirs)
    return [bytes(buffer) for buffer in buffers]


def _sealed(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest() + content


def _opened(sealed: bytes, rank: int) -> bytes:
    content = sealed[_DIGEST_BYTES:]
    if _sealed(content) != sealed:
        raise RuntimeError(
            f"Data that rank {rank} of a process group has sent to all ranks has changed on its way: the network or "
            "the memory of a host is damaged. RINGDP_CHECK=crc32c (the default) finds on which TCP link"
        )
    return content
