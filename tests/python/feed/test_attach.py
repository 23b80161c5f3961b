"""ringdp/feed/attach.py: everything of a process is written down, up to so many epochs."""

from __future__ import annotations

import ast

CODE = """
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from ringdp.feed.attach import attach
rows = []
attach(rows.append, {"epochs": 2})
loader = DataLoader(list(range(6)), batch_size=3)
for _ in range(4):
    list(loader)
list(DistributedSampler(list(range(6)), num_replicas=2, rank=0))
print([(row["loader"], row["epoch"]) for row in rows if row["kind"] == "epoch"])
rows.clear()
import atexit
atexit._run_exitfuncs()
print([row["kind"] for row in rows])
"""


def test_loaders_and_distributed_samplers_are_written_down(run_warm):
    result = run_warm(CODE)
    epochs, at_exit = map(ast.literal_eval, result.stdout.splitlines())
    assert epochs == [(0, 0), (0, 1), (1, 0)], result.stderr
    assert at_exit == ["cost"]
