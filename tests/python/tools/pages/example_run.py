"""A report of a run as ringdp.RunLog and train_gpt write it, for the tests of its page."""

from __future__ import annotations

import copy
from typing import Any

SPLIT = {"forward": 0.02, "backward": 0.03, "communication": 0.004, "optimizer": 0.006}
RUN: dict[str, Any] = {
    "origin": {"began": "2026-05-04 13:02:01+02:00", "host": "node-a", "command": "python train.py --lr 1e-3"},
    "backend": "ringdp",
    "world": 2,
    "items_per_step": 1000,
    "unit": "tokens",
    "history": {
        "losses": [5.5, 4.25, 4.0],
        "validation": [[0, 5.6], [3, 4.1]],
        "step_seconds": [0.5, 0.25, 0.25],
        "phases": [[0.1, 0.2, 0.05], [0.05, 0.1, 0.01], None],
    },
    "comparison": {
        "ours": SPLIT,
        "gloo": {**SPLIT, "communication": 0.012},
        "ratio": 1.13,
        "traffic": {"steps": 10, "wire": 0, "memory": 123450},
        "stock": None,
        "stock_ratio": None,
    },
    "final_hashes": ["aa", "aa"],
    "proof": {"of_ranks": ["bb" * 32] * 2, "of_one_process": "bb" * 32},
    "equal_to_one_process": True,
    "settings": {"ddp": "ringdp", "steps": 3, "corpus": "<text> & more", "nproc": None},
    "observed": {
        "parameters": 100,
        "memory": {"parameters": 400, "gradients": 400, "state": 808, "padding": 4, "gathered": 0, "buckets": 60},
        "formula": {"parameters": 400.0, "gradients": 400.0, "state": 800.0},
        "overlap": {
            "backward": 0.03,
            "communication": 0.012,
            "exposed": 0.003,
            "overlap": 0.75,
            "verdict": "75% of the communication was hidden behind the backward pass.",
            "buckets": [
                {"ready": 0.01, "launched": 0.012, "done": 0.02},
                {"ready": 0.029, "launched": 0.029, "done": 0.033},
            ],
        },
        "links": ["rank 1 (pid 7 on host): shm: mapping probed", "plan: arena (all ranks share memory)"],
    },
}


PROVEN = ("comparison", "final_hashes", "proof", "equal_to_one_process")  # what train_gpt adds


def plain_run() -> dict[str, Any]:
    """As RunLog writes it from any loop."""
    return {key: value for key, value in run().items() if key not in PROVEN}


def run(**changes: Any) -> dict[str, Any]:
    """A copy; keys are paths with __ between their parts."""
    made = copy.deepcopy(RUN)
    for path, value in changes.items():
        *above, last = path.split("__")
        here = made
        for key in above:
            here = here[key]
        here[last] = value
    return made
