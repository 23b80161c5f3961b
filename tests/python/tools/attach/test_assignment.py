"""What the variable may hold, the options in the folder, and how a process starts to watch."""

from __future__ import annotations

from importlib import metadata

import pytest
from ringdp.tools.attach.assignment import VARIABLE, Assignment, from_environment, parse


def test_what_is_written_is_read(tmp_path, monkeypatch):
    given = Assignment("audit", tmp_path)
    monkeypatch.setenv(VARIABLE, str(given))
    assert from_environment() == given
    given.write_options({"epochs": 3})
    assert from_environment().options() == {"epochs": 3}


def test_no_tool_watches_by_default(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert from_environment() is None


@pytest.mark.parametrize("text", ["audit", "audit:", "spy:/", "audit:/no/such/folder"])
def test_other_values_are_named(text):
    with pytest.raises(ValueError, match="audit:FOLDER or doctor:FOLDER") as refused:
        parse(text)
    assert f"'{text}'" in str(refused.value)


DRAW = """
import torch
from torch.utils.data import DataLoader
import ringdp
ringdp._register.autoload()
list(DataLoader(list(range(4)), batch_size=2))
"""


@pytest.fixture(autouse=True)
def installed():
    if "ringdp" not in metadata.entry_points(group="torch.backends").names:
        pytest.skip("ringdp is not installed here, so torch cannot find its entry point")


def test_a_rank_is_watched_once(run_python, tmp_path):
    (tmp_path / "options.json").write_text('{"epochs": 3}')
    result = run_python(DRAW, RINGDP_ATTACH=f"audit:{tmp_path}")
    assert result.returncode == 0, result.stderr
    (file,) = tmp_path.glob("*.jsonl")
    assert file.read_text().count('"kind":"batch"') == 2
    assert Assignment("audit", tmp_path).attached


@pytest.mark.parametrize("value", [pytest.param("audit:/no/such/folder", marks=pytest.mark.long), "spy:/"])
def test_a_bad_assignment_is_said_and_torch_imports(run_python, value):
    result = run_python("import torch; print('alive')", RINGDP_ATTACH=value)
    assert result.stdout.strip() == "alive"
    assert "ringdp does not watch this process" in result.stderr and value in result.stderr
