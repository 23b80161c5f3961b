"""Checks a pickle before it is read: refuses one that makes the interpreter allocate memory that no value needs.

A pickle may name any index of its memo, and CPython allocates all entries before that index: a file of eleven bytes can
take 64 GiB. A length that goes beyond the file takes address space in the same way.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Iterable

_BY_NAME = {row.name: row for row in pickletools.opcodes}
_LINES = {"GLOBAL": 2, "INST": 2}  # how many lines; other arguments that end with a line have one
_COUNTED = {  # bytes of the length in front of a counted argument
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}


def _shape(name: str) -> tuple[int, int, int]:
    """Bytes of the argument, bytes of its length, lines of it."""
    row = _BY_NAME[name]
    size = row.arg.n if row.arg else 0
    if size == pickletools.UP_TO_NEWLINE:
        return 0, 0, _LINES.get(name, 1)
    return (size, 0, 0) if size >= 0 else (0, _COUNTED[size], 0)


def check(content: bytes, allowed: Iterable[str] = _BY_NAME) -> None:
    """pickle.UnpicklingError unless all operations are `allowed`, by pickletools' names, and fit the file."""
    shapes = {ord(_BY_NAME[name].code): _shape(name) for name in allowed}
    places = {ord(_BY_NAME["PUT"].code), ord(_BY_NAME["LONG_BINPUT"].code)}
    at, end = 0, len(content)
    while at < end:
        code = content[at]
        if code not in shapes:
            raise pickle.UnpicklingError(f"has the operation {code:#x} at byte {at}")
        size, count, lines = shapes[code]
        start = at = at + 1
        if count:
            at += count + int.from_bytes(content[at : at + count], "little")
        at += size
        for _ in range(lines):
            at = content.find(b"\n", at) + 1 or end + 1
        if at > end:
            raise pickle.UnpicklingError(f"is cut off in the operation {code:#x} at byte {start - 1}")
        if code in places:
            text = content[start : at - 1].strip()
            if lines and not text.isdigit():
                raise pickle.UnpicklingError(f"has no number at byte {start}")
            place = int(text[:20]) if lines else int.from_bytes(content[start:at], "little")
            if place > end:
                raise pickle.UnpicklingError(f"keeps a value at place {place} of its memo, and has {end} bytes")
        if code == 0x2E:  # STOP: what follows is not read
            return
