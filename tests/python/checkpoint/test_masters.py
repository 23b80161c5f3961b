"""Which dtype a state has in a run that steps another one than the run that saved it."""

from __future__ import annotations

import warnings

import pytest
import torch
from ringdp.checkpoint import Spec
from ringdp.checkpoint.masters import Stepped, say_left_out
from ringdp.checkpoint.piece import whole

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
