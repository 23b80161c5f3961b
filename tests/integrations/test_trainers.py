"""Training frameworks that make or take the process group: Lightning and Accelerate, under torchrun."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import trainer_script

SCRIPT = Path(trainer_script.__file__)


def trained_in_one_process() -> list[list[float]]:
    """What stock DDP computes on two ranks: each gradient times 1/2, summed in rank order."""
    model, rows = trainer_script.model(), trainer_script.rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=trainer_script.RATE)
    for step in range(trainer_script.STEPS):
        gradients = []
        for rank in range(2):
            model.zero_grad()
            trainer_script.loss(model(rows[2 * step + rank : 2 * step + rank + 1])).backward()
            gradients.append([parameter.grad * 0.5 for parameter in model.parameters()])
        for parameter, first, second in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = first + second
        optimizer.step()
    return [parameter.flatten().tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("framework", ["lightning", pytest.param("accelerate", marks=pytest.mark.long)])
def test_the_training_has_the_bits_of_one_process(run_warm, tmp_path, framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    output = tmp_path / "trained.json"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = run_warm(*launcher, str(SCRIPT), framework, str(output), CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stdout + result.stderr
    trained = json.loads(output.read_text())
    assert trained["backends"] == ["ringdp"] * 2
    assert trained["parameters"] == trained_in_one_process()
