"""Stage 3 on one host: a unit is gathered once, into memory of one rank that all others map and read.

Every rank gathers the same units in the same order, and rank 0 says where each one lies. Who holds a unit returns its
block by dropping the memory; rank 0 fills a block again when all ranks have returned it, and takes another one until
then. So nothing is overwritten that a slower rank, or a graph that one has kept, still reads.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ringdp import _native
from ringdp.zero.flat import all_gather

_C = _native.load()
_CPU = torch.device("cpu")
_ROOT, _WORD = 0, 8
_MOST = 256  # blocks at a time


@dataclass
class _Block:
    """Memory of rank 0. row: its place in the table of words. use: how often it was handed out."""

    memory: torch.Tensor
    row: int
    use: int = 0


class _Pool:
    """Rank 0's blocks. words: for each block and rank the latest use that the rank has returned.

    It outlives its model (_left), and so does not keep what allocates, which would keep the group.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor], ranks: int) -> None:
        self._ranks, self._process = ranks, os.getpid()
        self.words = allocate(_MOST * ranks * _WORD).view(torch.int64).zero_()
        self._blocks: list[_Block] = []

    def take(self, nbytes: int, allocate: Callable[[int], torch.Tensor]) -> _Block:
        """A block that nobody reads. RuntimeError if there is no room for it."""
        block = next((b for b in self._blocks if b.memory.nbytes == nbytes and self._is_returned(b)), None)
        if block is None:
            self._blocks = [b for b in self._blocks if not self._is_returned(b)]
            rows = set(range(_MOST)) - {b.row for b in self._blocks}
            if not rows:
                raise RuntimeError(
                    f"{_MOST} gathered units are in use at the same time (zero_stage=3), and no more can"
                )
            row = min(rows)
            block = _Block(allocate(nbytes), row, int(self.words[row * self._ranks]))  # all ranks have the same there
            self._blocks.append(block)
        block.use += 1
        return block

    def is_idle(self) -> bool:
        """Whether nobody reads any block. Forked children do not map the words."""
        return os.getpid() != self._process or all(map(self._is_returned, self._blocks))

    def _is_returned(self, block: _Block) -> bool:
        return bool(_C.is_returned(self.words, block.row * self._ranks, self._ranks, block.use))


# Pools of models that are gone: other ranks may still read them.
_left: list[_Pool] = []


def _leave(*pools: _Pool) -> None:
    """May come by at any time, also within itself: when a garbage collector does."""
    _left.extend(pools)
    for pool in list(_left):
        if pool.is_idle() and pool in _left:
            _left.remove(pool)


@dataclass
class SharedGather:
    """A gather under way: the memory of one bucket, the same for all ranks."""

    works: list[Any]
    _part: torch.Tensor  # this rank's
    _note: torch.Tensor  # where words and block lie in the memory of rank 0, the block's row and use; -1: no room there
    _group: dist.ProcessGroup
    _backend: Any
    _nbytes: int

    def memory(self) -> torch.Tensor:
        """When the works are done: the bytes, to be read only; they are returned with the last reference.

        Where rank 0 had no room each rank gathers its own, which is collective.
        """
        words_at, block_at, row, use = self._note.tolist()
        if block_at < 0:
            own = torch.empty(self._nbytes, dtype=torch.uint8, device=_CPU)
            all_gather(own, self._part, group=self._group)
            return own
        ranks = self._group.size()
        words = self._backend.heap_view(_ROOT, words_at, _MOST * ranks * _WORD).view(torch.int64)
        block = self._backend.heap_view(_ROOT, block_at, self._nbytes)
        return _C.lent(block, words, row * ranks + self._group.rank(), use)


class SharedBlocks:
    """Gathers the buckets of one model into memory that all ranks of `group` read. All ranks must call alike."""

    @staticmethod
    def of(group: dist.ProcessGroup, device: torch.device) -> SharedBlocks | None:
        """None, on all ranks, where the ranks do not map each other's memory."""
        if device.type != "cpu" or group.size() == 1:
            return None
        try:
            backend = group._get_backend(device)
        except (RuntimeError, AttributeError):  # the group is written in Python
            return None
        return SharedBlocks(group, backend) if isinstance(backend, _C.Backend) and backend.maps_all_heaps() else None

    def __init__(self, group: dist.ProcessGroup, backend: Any) -> None:
        self._group, self._backend = group, backend
        self._pool: _Pool | None = None
        self._end: Any = None

    def gather(self, part: torch.Tensor) -> SharedGather:
        """Starts the gather of the ranks' parts, flat tensors of as many bytes each. Collective."""
        group, nbytes = self._group, part.nbytes * self._group.size()
        if group.rank() != _ROOT:
            note, rows = torch.empty(4, dtype=torch.int64, device=_CPU), None
        else:
            told_as, memory = self._taken(nbytes)
            note, rows = torch.tensor(told_as, device=_CPU), list(memory.split(part.nbytes))
        # In one arena collectives run one after the other, so whoever has the note knows that the gather is done.
        gather = dist.gather(part, rows, group=group, group_dst=_ROOT, async_op=True)
        told = dist.broadcast(note, group=group, group_src=_ROOT, async_op=True)
        return SharedGather([gather, told], part, note, group, self._backend, nbytes)

    def forget(self) -> None:
        """The group is left for another one, with all that it has gathered."""
        if self._end is not None:
            try:
                self._allocate(1)
                self._end()
            except RuntimeError:  # the group is gone, and nothing will lie where others may still read
                self._end.detach()
        self._pool = self._end = None

    def _taken(self, nbytes: int) -> tuple[list[int], torch.Tensor]:
        """On rank 0: a note, and the memory of a block; other memory where there is no room for one."""
        try:
            pool = self._own_pool()
            block = pool.take(nbytes, self._allocate)
        except RuntimeError:
            return [-1] * 4, torch.empty(nbytes, dtype=torch.uint8, device=_CPU)
        places = map(self._backend.heap_offset, (pool.words, block.memory))
        return [*places, block.row, block.use], block.memory

    def _own_pool(self) -> _Pool:
        if self._pool is None:
            _leave()
            self._pool = _Pool(self._allocate, self._group.size())
            self._end = weakref.finalize(self, _leave, self._pool)
            self._end.atexit = False  # the memory lives as long as a process maps it
        return self._pool

    def _allocate(self, nbytes: int) -> torch.Tensor:
        return self._backend.allocate_tensor(nbytes, dtype=torch.uint8, device=_CPU)
