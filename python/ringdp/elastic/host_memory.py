"""Memory of a host that outlives its ranks: a file without a name, which the supervisor there holds open.

A record is a tree of tensors and plain values, of some moment. It has two places, which moments take by turns, so that
the record of the latest moment is whole while the next one is written, whenever the process that writes it is killed: a
label, which is written last, says of which moment a record is. Blocks are values that several ranks write, each block
with the moment that it is of. The file is sparse, and has no more pages than were written.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

import torch
from torch import Tensor

from ringdp.elastic.state import packed, unpacked

_PLACE = 1 << 40  # bytes of the file for one record
_LABEL = struct.Struct("<qqq")  # moment, home + 1, bytes of the header
_HEADER_AT, _ALIGNED = 64, 64
_MOMENT_BYTES = 8
_VALUES_AT = 1 << 38  # of blocks, behind their moments
_PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
NOT_HERE = -1


class HostMemory:
    """Of this host. Records and blocks have numbers below 2^21; moments count from 1.

    Who writes a record is the only one, but for others that write the same bits. RuntimeError: memory is lacking.
    """

    def __init__(self, path: str) -> None:
        """path: as Worlds.memory() says. OSError: its process is gone."""
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        """This process needs it no longer."""
        os.close(self._file)

    def write(self, number: int, moment: int, home: int, value: Any) -> None:
        """A record. home: a host, for home_of(). What was there of the moment before the previous one is gone."""
        at = _place(number, moment)
        self._put(at, _LABEL.pack(0, 0, 0))
        header, flats = packed(value)
        self._put(at + _HEADER_AT, header.numpy().data)
        place = at + _HEADER_AT + len(header)
        for flat in flats:
            place = _aligned(place)
            self._put(place, flat.numpy().data)
            place += flat.nbytes
        self._put(at, _LABEL.pack(moment, home + 1, len(header)))

    def home_of(self, number: int, moment: int) -> int:
        """That of the record of this moment; NOT_HERE where there is none."""
        found, home, _ = self._label(number, moment)
        return home - 1 if found == moment else NOT_HERE

    def moments(self, number: int) -> list[int]:
        """Those of which there is a record."""
        return [moment for turn in (0, 1) if (moment := self._label(number, turn)[0]) > 0]

    def read(self, number: int, moment: int) -> Any:
        """The record of a moment of which there is one."""
        at = _place(number, moment)
        header = torch.empty(self._label(number, moment)[2], dtype=torch.uint8)
        self._get(at + _HEADER_AT, header)
        value, flats = unpacked(header)
        place = at + _HEADER_AT + len(header)
        for flat in flats:
            place = _aligned(place)
            self._get(place, flat)
            place += flat.nbytes
        return value

    def forget(self, number: int) -> None:
        """Frees what a record takes, of all moments."""
        begin, size = ctypes.c_int64(_place(number, 0)), ctypes.c_int64(2 * _PLACE)
        ctypes.CDLL(None).fallocate64(self._file, _PUNCH_HOLE, begin, size)  # where that fails, the memory stays

    def write_blocks(self, number: int, moment: int, first: int, values: Tensor, block: int) -> None:
        """float32 values of the blocks from `first` on, of so many elements each; the last one may be shorter."""
        at, blocks = _place(number, moment), -(-len(values) // block)
        self._put(at + _VALUES_AT + first * block * values.element_size(), values.contiguous().numpy().data)
        self._put(at + first * _MOMENT_BYTES, torch.full((blocks,), moment).numpy().data)

    def read_blocks(self, number: int, moment: int, elements: int, block: int) -> tuple[Tensor, Tensor]:
        """float32 [elements], and whether each block is of this moment; others may be anything."""
        at, moments = _place(number, moment), torch.zeros(-(-elements // block), dtype=torch.int64)
        values = torch.zeros(elements, dtype=torch.float32)
        self._get(at, moments)
        self._get(at + _VALUES_AT, values)
        return values, moments == moment

    def _label(self, number: int, moment: int) -> tuple[int, int, int]:
        read = os.pread(self._file, _LABEL.size, _place(number, moment))
        return _LABEL.unpack(read.ljust(_LABEL.size, b"\0"))

    def _put(self, at: int, data: Any) -> None:
        rest = memoryview(data).cast("B")
        try:
            while rest:
                written = os.pwrite(self._file, rest, at)
                at, rest = at + written, rest[written:]
        except OSError as error:
            raise RuntimeError(
                f"survive_local: the memory of this host does not take what is kept of a worker: {error}; the limit "
                "may be that of file sizes (ulimit -f)"
            ) from error

    def _get(self, at: int, tensor: Tensor) -> None:
        """Fills it; what was never written stays."""
        rest = memoryview(tensor.numpy().data).cast("B")
        while rest and (read := os.preadv(self._file, [rest], at)):
            at, rest = at + read, rest[read:]


def _place(number: int, moment: int) -> int:
    return (2 * number + moment % 2) * _PLACE


def _aligned(place: int) -> int:
    return -(-place // _ALIGNED) * _ALIGNED
