"""ringdp/bounded_pickle.py: real pickles of every protocol pass; what would cost memory or is forbidden does not."""

from __future__ import annotations

import datetime
import pickle
import pickletools

import pytest
from ringdp.bounded_pickle import check

VALUES = [
    1,
    -(1 << 70),
    1.5,
    "text",
    b"bytes",
    bytearray(b"x"),
    (1, 2, 3, 4),
    {"a": [None, True]},
    {3},
    datetime.date(2024, 1, 2),
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_python_writes_passes(protocol):
    content = pickle.dumps([*VALUES, VALUES], protocol)
    check(content)
    check(content, {operation.name for operation, *_ in pickletools.genops(content)})


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}r\xff\xff\xff\x3f.",
        b"}p999999999\n.",
        b"X\xff\xff\xff\x7fab.",
        b"\x96" + b"\xff" * 8 + b".",
        b"cmodule\nname",
    ],
    ids=["memo", "memo as text", "text", "bytes", "cut"],
)
def test_what_does_not_fit_its_file_is_refused(content):
    with pytest.raises(pickle.UnpicklingError):
        check(content)


def test_other_operations_are_refused():
    content = pickle.dumps("text", 2)
    with pytest.raises(pickle.UnpicklingError, match=r"has the operation 0x71"):
        check(content, ("PROTO", "BINUNICODE", "STOP"))
