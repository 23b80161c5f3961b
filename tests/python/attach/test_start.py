"""ringdp/attach/start.py: hooks are set by `import torch` alone, once, and torch stays importable."""

from __future__ import annotations

from importlib import metadata

import pytest
from ringdp.attach.assignment import Assignment

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
