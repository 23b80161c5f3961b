"""Training frameworks that make or take the process group: Lightning and Accelerate, under torchrun."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("trainer_script.py")


@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_the_training_has_gloos_bits(run_python, tmp_path, framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")

    def trained(backend: str) -> dict[str, Any]:
        output = tmp_path / backend
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        result = run_python(*launcher, str(SCRIPT), framework, backend, str(output), CUDA_VISIBLE_DEVICES="")
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(output.read_text())

    theirs, ours = trained("gloo"), trained("ringdp")
    assert ours["backends"] == ["ringdp"] * 2
    assert ours["parameters"] == theirs["parameters"]
