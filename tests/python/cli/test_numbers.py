"""ringdp/cli/numbers.py: what is accepted, and what is named."""

from __future__ import annotations

import argparse

import pytest
from ringdp.cli.numbers import positive


@pytest.mark.parametrize(
    ("kind", "most", "text", "value"),
    [(int, None, "3", 3), (float, None, "0.5", 0.5), (int, 16, "16", 16), (float, 2.0, "2", 2.0)],
)
def test_numbers_above_0(kind, most, text, value):
    assert positive(kind, most)(text) == value


@pytest.mark.parametrize(
    ("kind", "most", "text", "said"),
    [
        (int, None, "0", "whole number of 1 or more"),
        (int, None, "1.5", "whole number of 1 or more"),
        (float, None, "inf", "number above 0"),
        (float, None, "nan", "number above 0"),
        (float, None, "x", "number above 0"),
        (int, 16, "17", "whole number from 1 to 16"),
        (int, 16, "four", "whole number from 1 to 16"),
        (float, 0.5, "0.6", "number above 0, up to 0.5"),
    ],
)
def test_other_numbers_are_named(kind, most, text, said):
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        positive(kind, most)(text)
    assert str(refused.value) == f"'{text}' is no {said}"
