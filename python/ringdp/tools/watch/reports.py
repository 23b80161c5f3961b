"""What ranks tell each other: each puts its latest rows and checksums into the job's store, and rank 0 reads them.

Not by a collective: that would have to come at the same place on all ranks, and would hang where some do not watch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ringdp.tools.watch.figures import ROW_BYTES

_HEAD = struct.Struct("<8sQII")  # magic, what model it is about, numbers of rows and of sums
_MAGIC = b"rdwatch1"
_SUM = struct.Struct("<qIQ")
_PATIENCE = timedelta(seconds=5)


@dataclass(frozen=True)
class Report:
    """The latest of one rank. signature: of the model's parameters, equal where ranks watch the same model.

    rows: packed; _C.StepJudge looks whether they can be. sums: (key of the step, block, checksum).
    """

    signature: int
    rows: bytes
    sums: Sequence[tuple[int, int, int]]

    def pack(self) -> bytes:
        """As it lies in the store."""
        head = _HEAD.pack(_MAGIC, self.signature, len(self.rows) // ROW_BYTES, len(self.sums))
        return b"".join([head, self.rows, *(_SUM.pack(*one) for one in self.sums)])

    @classmethod
    def unpack(cls, content: bytes) -> Report:
        """ValueError says what is wrong with it."""
        if len(content) < _HEAD.size:
            raise ValueError(f"a report of {len(content)} bytes")
        magic, signature, rows, sums = _HEAD.unpack_from(content)
        end = _HEAD.size + rows * ROW_BYTES
        if magic != _MAGIC or end + sums * _SUM.size != len(content):
            raise ValueError(f"no report of this release: {content[:8]!r}, {len(content)} bytes")
        return cls(signature, content[_HEAD.size : end], list(_SUM.iter_unpack(content[end:])))


def why_no_store() -> str:
    """Why ranks cannot tell each other anything; "" where they can."""
    store = distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        return ""
    return f"the job's store is a {type(store).__name__}, and only a TCPStore takes reports for the life of a job"


class Board:
    """The reports of a group's ranks under one name in the store: one for each rank, replaced by its next.

    Makes a connection of its own, so that it waits for no other thread's calls.
    """

    def __init__(self, name: str, rank: int, ranks: int) -> None:
        self._store = dist.PrefixStore(f"ringdp_watch/{name}", distributed_c10d._get_default_store().clone())
        self._store.set_timeout(_PATIENCE)
        self._rank = rank
        self._unseen = [other for other in range(ranks) if other != rank]
        self._seen: list[int] = []

    def show(self, report: bytes) -> None:
        """This rank's, in place of the one before."""
        self._store.set(str(self._rank), report)

    def reports(self) -> dict[int, bytes]:
        """Those of all other ranks that are there."""
        for rank in self._unseen[:]:
            if self.shows(rank):
                self._unseen.remove(rank)
                self._seen.append(rank)
        found = self._store.multi_get([str(rank) for rank in self._seen]) if self._seen else []
        return dict(zip(self._seen, found, strict=True))

    def clear(self) -> None:
        """Takes this rank's, and those that reports() has seen, out of the store."""
        for rank in (self._rank, *self._seen):
            self._store.delete_key(str(rank))

    def shows(self, rank: int) -> bool:
        """Whether this rank has shown anything."""
        return self._store.check([str(rank)])
