"""The changes of these tests fit the example, and are Python."""

from __future__ import annotations

import ast

import pytest
from planted import CLEAN, FAULTS, HARMLESS, WRAPPERS, script


@pytest.mark.parametrize("change", [*FAULTS, *HARMLESS])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_change_fits_the_example(change, wrapper, tmp_path):
    text = script(tmp_path, change, wrapper=wrapper).read_text()
    assert text != script(tmp_path, wrapper=wrapper).read_text()
    ast.parse(text)


def test_without_a_change_it_is_the_example(tmp_path):
    assert script(tmp_path).read_text() == CLEAN.read_text()
