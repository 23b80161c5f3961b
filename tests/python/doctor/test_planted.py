"""The faults of these tests fit the clean script, and are Python."""

from __future__ import annotations

import ast

import pytest
from planted import CLEAN, PATCHES, script


@pytest.mark.parametrize("fault", PATCHES)
def test_a_fault_changes_the_script(fault, tmp_path):
    text = script(tmp_path, fault).read_text()
    assert text != CLEAN.read_text()
    ast.parse(text)
