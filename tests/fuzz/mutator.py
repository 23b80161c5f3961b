"""Changes files at random: bytes of any, values of those that are JSON or a pickle of plain values."""

from __future__ import annotations

import io
import json
import pickle
import random
import re
from collections.abc import Sequence
from typing import Any

MOST_BYTES = 1 << 16
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_WHOLE = (0, -1, 1, 2, 255, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**30)
_NUMBERS = (*_WHOLE, 0.5, -0.0, 1e308, float("inf"), float("nan"))
_VALUES = (*_NUMBERS, None, True, False, "", "0", "a\x00b", "\ud800", "x" * 300, [], {}, [[]], [None], {"": None})
_TOKENS = (*b"[ ] { } , : null NaN 1e999".split(), b'"', b"\\u", b"\x00", b"\xff" * 4, b"\n", b"[" * 3000)


def mutated(content: bytes, others: Sequence[bytes], choose: random.Random) -> bytes:
    """The content after one to four changes; `others` are files from which parts may come."""
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        content = choose.choice((_changed_bytes, _changed_bytes, _changed_values))(content, others, choose)
    return content[:MOST_BYTES]


def _changed_bytes(content: bytes, others: Sequence[bytes], choose: random.Random) -> bytes:
    at = choose.randrange(len(content) + 1)
    size = choose.choice((1, 1, 2, 4, 8, 64))
    kind = choose.randrange(7)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[at + size :]
    if kind == 2:
        return content[:at] + choose.randbytes(size) + content[at + size :]
    if kind == 3:
        return content[:at] + choose.choice(_TOKENS) + content[at:]
    if kind == 4:
        other = choose.choice(others)
        start = choose.randrange(len(other) + 1)
        return content[:at] + other[start : start + 8 * size] + content[at:]
    if kind == 5 and (found := list(_NUMBER.finditer(content))):
        number = choose.choice(found)
        return content[: number.start()] + str(choose.choice(_NUMBERS)).encode() + content[number.end() :]
    return content[:at] + bytes(byte ^ 1 << choose.randrange(8) for byte in content[at : at + 1]) + content[at + 1 :]


def _changed_values(content: bytes, others: Sequence[bytes], choose: random.Random) -> bytes:
    for load, dump in ((json.loads, _as_json), (_plain_values, _as_pickle)):
        try:
            return dump(_changed_value(load(content), choose))
        except Exception:  # no such file, or a value that it cannot have
            continue
    return _changed_bytes(content, others, choose)


def _changed_value(value: Any, choose: random.Random) -> Any:
    """Somewhere in it a value is another one, is left out, or is there twice."""
    if not isinstance(value, (dict, list, tuple)) or not value or choose.random() < 0.1:
        return choose.choice(_VALUES)
    if isinstance(value, dict):
        key = choose.choice(list(value))
        if choose.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {name: _changed_value(item, choose) if name == key else item for name, item in value.items()}
    at = choose.randrange(len(value))
    middle: tuple[Any, ...] = (_changed_value(value[at], choose),)
    if choose.random() < 0.1:
        middle = choose.choice(((), (value[at], value[at])))
    return type(value)([*value[:at], *middle, *value[at + 1 :]])


def _as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(name)


def _plain_values(content: bytes) -> Any:
    return _Plain(io.BytesIO(content)).load()


def _as_pickle(value: Any) -> bytes:
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=2)
    pickler.fast = True  # no memo, as csrc/trace/pickle.h
    pickler.dump(value)
    return stream.getvalue()

