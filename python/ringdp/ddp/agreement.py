"""Checks that all ranks were given the same model and arguments; if not, every rank names the first difference.

One all_gather of 64 bytes per rank; only if these differ, the descriptions are gathered too.
"""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ringdp.gather_objects import device_of, gather_objects

_DIGEST_BYTES = 32
_NOTHING = "nothing"


def check_models(
    group: dist.ProcessGroup,
    device: torch.device,
    names: Sequence[str],
    parameters: Sequence[torch.Tensor],
    settings: Sequence[str],
    *,
    compare_values: bool,
) -> None:
    """Collective. RuntimeError on every rank names the first difference in settings, names, dtypes, shapes or strides.

    `settings`: one line each. `compare_values`: warn on every rank if initial values differ.
    """
    lines = [*settings, *(line_of(index, n, p) for index, (n, p) in enumerate(zip(names, parameters, strict=True)))]
    values = [f"{n} {_hash_of(p)}" for n, p in zip(names, parameters, strict=True)] if compare_values else []
    models, contents = _gather_digests(group, device, [_digest(lines), _digest(values)])
    if len(set(models)) > 1:
        raise RuntimeError(
            "DistributedDataParallel: the ranks were not given the same model. "
            + first_difference(group, lines)
            + ". Build the same model with the same arguments, registered in the same order, on every rank"
        )
    if len(set(contents)) > 1:
        warnings.warn(
            "DistributedDataParallel: the ranks start from different values, and init_sync=False keeps them: averaging "
            "gradients never repairs that. "
            + first_difference(group, values)
            + ". Use init_sync=True or the same seed",
            RuntimeWarning,
            stacklevel=2,
        )


def check_order(group: dist.ProcessGroup, device: torch.device, names: Sequence[str]) -> None:
    """Collective. RuntimeError on every rank names the first unit that not all ranks have gathered.

    DistBackendError if other ranks do something else by now, as with another number of passes. names: of units, and of
    what else must be equal.
    """
    if group.size() == 1:
        return
    try:
        difference = Comparison(group, names, device).difference()
    except dist.DistBackendError as error:
        if not str(error).startswith("Mismatch"):
            raise
        raise dist.DistBackendError(
            f"{error} This rank was at the end of a forward or backward pass of the model (zero_stage=3): all ranks "
            "must run equally many, micro-batches in no_sync() included"
        ) from error
    if difference:
        raise RuntimeError(
            "DistributedDataParallel: the ranks have gathered different units (zero_stage=3), so parameters were "
            f"wrong in this pass. {difference}. All ranks must load the same state, and run the same modules in the "
            "same order; use zero_stage=2 where they cannot"
        )


class Comparison:
    """Lines of text that must be equal on all ranks, on their way to be compared. Collective, as is difference()."""

    def __init__(self, group: dist.ProcessGroup, lines: Sequence[str], device: torch.device | None = None) -> None:
        """Sends a digest, and does not wait. device: of the digest; default: one that the group has."""
        self._group, self._lines = group, list(lines)
        own = torch.frombuffer(bytearray(_digest(lines)), dtype=torch.uint8).to(device or device_of(group))
        self._by_rank = [torch.empty_like(own) for _ in range(group.size())]
        self._work = dist.all_gather(self._by_rank, own, group=group, async_op=True)

    def difference(self) -> str:
        """The first line that differs, with the ranks that have it; "" where none does. Waits."""
        self._work.wait()
        equal = len({bytes(digest.cpu().tolist()) for digest in self._by_rank}) == 1
        return "" if equal else first_difference(self._group, self._lines)


def line_of(index: int, name: str, parameter: torch.Tensor) -> str:
    """What must be equal of a parameter on all ranks."""
    shape, strides = list(parameter.shape), list(parameter.stride())
    return f"parameter {index}: {name}, {parameter.dtype} {shape} with strides {strides}"


def _hash_of(parameter: torch.Tensor) -> str:
    flat = parameter.detach().cpu().contiguous()
    return hashlib.sha256(ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b"").hexdigest()


def _digest(lines: Sequence[str]) -> bytes:
    return hashlib.sha256("\n".join(lines).encode()).digest()


def _gather_digests(
    group: dist.ProcessGroup, device: torch.device, digests: Sequence[bytes]
) -> tuple[list[bytes], list[bytes]]:
    """Every rank's first and second digest, in one all_gather."""
    own = torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).to(device)
    by_rank = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(by_rank, own, group=group)
    both = [bytes(t.cpu().tolist()) for t in by_rank]
    return [b[:_DIGEST_BYTES] for b in both], [b[_DIGEST_BYTES:] for b in both]


def first_difference(group: dist.ProcessGroup, lines: Sequence[str]) -> str:
    """Collective: the first line that is not equal on all ranks, each way of it with the ranks that have it."""
    by_rank: list[list[str]] = gather_objects(list(lines), group)
    for number in range(max(map(len, by_rank))):
        ranks_of: dict[str, list[int]] = {}
        for rank, theirs in enumerate(by_rank):
            ranks_of.setdefault(theirs[number] if number < len(theirs) else _NOTHING, []).append(rank)
        if len(ranks_of) > 1:
            return "First difference: " + "; ".join(f"{_ranks(ranks)}: {line}" for line, ranks in ranks_of.items())
    return "The difference is in what was hashed only"


def _ranks(ranks: Sequence[int]) -> str:
    return ("ranks " if len(ranks) > 1 else "rank ") + ", ".join(map(str, ranks))
