"""All probes at once, in a process of their own."""

from __future__ import annotations

import ast

CODE = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from ringdp.tools.doctor.probes import attach
rows = []
attach(rows.append, {"folder": sys.argv[1], "steps": 30})
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for x, in DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2):
    model(x).sum().backward()
    optimizer.step()
print({row["kind"] for row in rows})
print([(row["optimizer"], row["samples"]) for row in rows if row["kind"] == "step"])
"""


def test_one_training_is_written_down(run_warm, tmp_path):
    result = run_warm("-c", CODE, str(tmp_path))
    assert result.returncode == 0, result.stderr
    kinds, steps = map(ast.literal_eval, result.stdout.splitlines())
    assert kinds == {"loader", "epoch", "batch", "trained", "end", "cost", "step", "dropout", "place"} | {
        "parameters",
        "replicas",
        "share",
    }
    assert steps == [("AdamW", 2)] * 3
