"""An optimizer's groups as settings, and the dtype of its state with and without fp32 copies."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from ringdp.checkpoint import CheckpointError, Spec
from ringdp.checkpoint.optimizer_state import Groups, Stepped, merged, say_left_out
from ringdp.checkpoint.piece import whole
from torch import nn


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
