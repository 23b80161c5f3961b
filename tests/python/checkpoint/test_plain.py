"""What goes through JSON comes back as it was, bits and types; pickles only for who allows them."""

from __future__ import annotations

import json
import random
from collections import Counter, OrderedDict
from decimal import Decimal

import numpy
import pytest
from ringdp.checkpoint import CheckpointError
from ringdp.checkpoint.plain import decode, encode
from states import bits_of, odd_state

VALUES = [
    None,
    True,
    -(10**40),
    0.1,
    -0.0,
    float("inf"),
    "text ~ \u00fc",
    [1, [2.5, None]],
    (0.9, 0.999),
    {"a": (1,), "b": [()]},
    {1: "one", (2, 3): "two"},
    {"~": "tag", "is": 1},
    {"x": {"~": {"~": 0}}},
    OrderedDict(b=1, a=(2,)),
    Counter({30: 1, 80: 2}),
    {1, 2},
    frozenset({"a"}),
    b"\x00\xff",
    1 - 2j,
    random.Random(3).getstate(),
]


def through_json(value, **options):
    return decode(json.loads(json.dumps(encode(value))), **options)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:20])
def test_it_comes_back_as_it_was(value):
    back = through_json(value)
    assert repr(back) == repr(value)
    assert type(back) is type(value)


def test_nan_comes_back():
    assert str(through_json(float("nan"))) == "nan"


def test_tensors_and_arrays_come_back_bit_for_bit():
    for tensor in odd_state(5).values():
        back = through_json(tensor)
        assert back.dtype == tensor.dtype and back.shape == tensor.shape
        assert bits_of(back) == bits_of(tensor)
    array = numpy.arange(6, dtype=numpy.uint32).reshape(2, 3)
    back = through_json(array)
    assert back.dtype == array.dtype and (back == array).all() and back.shape == array.shape
    scalar = through_json(numpy.float64(0.1))
    assert type(scalar) is numpy.float64 and scalar == 0.1


def test_a_pickle_is_read_only_when_allowed():
    value = {"price": Decimal("0.10")}
    with pytest.raises(CheckpointError, match="allow_pickle=True"):
        through_json(value)
    assert through_json(value, allow_pickle=True) == value


def test_what_cannot_be_stored_is_named():
    with pytest.raises(CheckpointError, match="a function cannot be stored"):
        encode([lambda: 0])


def test_an_unknown_tag_is_named():
    with pytest.raises(CheckpointError, match="unknown type 'orb'"):
        decode({"~": "orb", "is": 0})
