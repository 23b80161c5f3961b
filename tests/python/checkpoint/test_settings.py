"""What a checkpoint has beside tensors: plain values, generators, the settings of optimizers."""

from __future__ import annotations

import json
import math
import random
import warnings
from collections import Counter, OrderedDict
from decimal import Decimal

import numpy
import pytest
import torch
from ringdp.checkpoint import CheckpointError, Spec, rng
from ringdp.checkpoint.optimizer_state import Groups, Stepped, merged, say_left_out
from ringdp.checkpoint.piece import whole
from ringdp.checkpoint.plain import decode, encode
from states import bits_of, odd_state
from torch import nn

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


# Generators go on where they stopped; with another number of ranks they start afresh, each rank differently.


def drawn() -> tuple[object, ...]:
    return random.random(), random.gauss(0, 1), float(numpy.random.normal()), torch.rand(3).tolist()


def captured(seed: int) -> dict[str, object]:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    drawn()  # leaves half of a pair of normal numbers behind
    return json.loads(json.dumps(rng.capture()))


def test_the_same_number_of_ranks_goes_on():
    of_ranks, expected = [], []
    for rank in range(3):
        of_ranks.append(captured(rank))
        expected.append(drawn())
    for rank in (2, 0, 1):
        rng.resume(of_ranks, rank, 3)
        assert drawn() == expected[rank]


def test_another_number_of_ranks_starts_afresh_and_always_alike():
    of_ranks = [captured(rank) for rank in range(3)]
    started = []
    for size in (2, 4):
        for rank in range(size):
            rng.resume(of_ranks, rank, size)
            first = drawn()
            captured(99)
            rng.resume(of_ranks, rank, size)
            assert drawn() == first
            started.append(first)
    assert len(set(map(str, started))) == 6


def test_the_seed_depends_on_what_was_saved():
    assert rng.seed_of([captured(1)], 0, 2) != rng.seed_of([captured(2)], 0, 2)
    assert 0 <= rng.seed_of([captured(1)], 1, 2) < 2**63


# An optimizer's groups as settings, and the dtype of its state with and without fp32 copies.


def groups_of(module: nn.Module, **settings: object) -> tuple[Groups, list[dict]]:
    optimizer = torch.optim.AdamW([{"params": [module.weight], "lr": 0.5}, {"params": [module.bias]}], **settings)
    names = {parameter: name for name, parameter in module.named_parameters()}
    return Groups("AdamW", optimizer.param_groups, names), optimizer.param_groups


def test_what_is_stored_is_named_and_taken_up():
    source, _ = groups_of(nn.Linear(2, 2), betas=(0.1, 0.2), foreach=True)
    saved = source.settings([("weight", "count", 3), ("weight", "moment", torch.ones(1))])
    assert saved["optimizer"]["values"] == {"weight": {"count": 3}}
    assert [group["names"] for group in saved["optimizer"]["groups"]] == [["weight"], ["bias"]]
    target, groups = groups_of(nn.Linear(2, 2), foreach=False)
    target.check(saved)
    target.adopt(saved)
    assert [(g["lr"], g["betas"], g["foreach"]) for g in groups] == [
        (0.5, (0.1, 0.2), False),
        (1e-3, (0.1, 0.2), False),
    ]


def test_names_that_a_wrapper_gave_are_not_stored():
    module = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(module.named_parameters("module"), lr=0.1)
    names = {parameter: name for name, parameter in module.named_parameters()}
    (group,) = Groups("SGD", optimizer.param_groups, names).settings([])["optimizer"]["groups"]
    assert group["names"] == ["0.weight", "0.bias"] and "param_names" not in group


def settings_with(**values: dict) -> dict:
    return {"optimizer": {"algorithm": "Counting", "groups": [], "values": values}}


def test_values_of_all_ranks_come_together():
    together = merged([settings_with(a={"n": 1}), settings_with(b={"n": 2}, a={"n": 1}), settings_with()])
    assert together == [settings_with(a={"n": 1}, b={"n": 2})] * 3


def test_other_settings_stay_as_they_are():
    assert merged([{"count": 1}, {"count": 2}]) == [{"count": 1}, {"count": 2}]


def test_values_that_differ_are_named():
    with pytest.raises(CheckpointError, match=r"differ in the state of a: one has \{'n': 1\}, another \{'n': 2\}"):
        merged([settings_with(a={"n": 1}), settings_with(a={"n": 2})])
    merged([settings_with(a={"n": math.nan}), settings_with(a={"n": math.nan})])


WITHOUT = [Spec("parameter", "w", (2,), "bfloat16")]
WITH = [*WITHOUT, Spec("master", "w", (2,), "float32")]
BF16, FP32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("specs", "kind", "saved", "stepped", "expected"),
    [
        (WITH, "exp_avg", FP32, FP32, FP32),
        (WITH, "exp_avg", FP32, BF16, BF16),
        (WITHOUT, "exp_avg", BF16, FP32, FP32),
        (WITHOUT, "exp_avg", BF16, BF16, BF16),
        # A state that was not in the dtype of what was stepped is the optimizer's own choice.
        (WITHOUT, "exp_avg", FP32, BF16, FP32),
        (WITH, "exp_avg", BF16, FP32, BF16),
        (WITH, "seen", torch.int64, BF16, torch.int64),
        # Numbers are not elements.
        (WITH, "step", FP32, BF16, FP32),
        ([], "exp_avg", FP32, BF16, FP32),
    ],
)
def test_state_follows_what_is_stepped(specs, kind, saved, stepped, expected):
    piece = whole(kind, "w", torch.ones(2).to(saved))
    assert Stepped(specs).dtype_for(piece.stretch.spec, stepped) == expected
    assert Stepped(specs).fitted(piece, stepped).dtype == expected


def test_masters_that_are_left_out_are_told():
    with pytest.warns(UserWarning, match=r"float32 masters of 2 parameters \(a, ...\).*master_dtype=torch.float32"):
        say_left_out(["a", "b"])


def test_nothing_is_told_when_all_is_kept():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        say_left_out([])
