"""ringdp/attach/assignment.py: what the variable may hold, and the options beside it."""

from __future__ import annotations

import pytest
from ringdp.attach.assignment import VARIABLE, Assignment, from_environment, parse


def test_what_is_written_is_read(tmp_path, monkeypatch):
    given = Assignment("audit", tmp_path)
    monkeypatch.setenv(VARIABLE, str(given))
    assert from_environment() == given
    given.write_options({"epochs": 3})
    assert from_environment().options() == {"epochs": 3}


def test_nobody_watches_by_default(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert from_environment() is None


@pytest.mark.parametrize("text", ["audit", "audit:", "spy:/", "audit:/no/such/folder"])
def test_other_values_are_named(text):
    with pytest.raises(ValueError, match="audit:FOLDER or doctor:FOLDER") as refused:
        parse(text)
    assert f"'{text}'" in str(refused.value)
