"""One rank's side of race/job.py: a process group, a function, and everybody's results in one file.

python -m MODULE RESULT JOB      (JOB: JSON; rank and address from the environment, as torchrun sets them)
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def serve(run: Callable[[dict[str, Any]], Any]) -> None:
    """Joins a group over the job's "backend", runs it on one thread, leaves all ranks' results."""
    torch.set_num_threads(1)
    job = json.loads(sys.argv[2])
    dist.init_process_group(job["backend"])
    try:
        result = run(job)
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, result)
        if dist.get_rank() == 0:
            Path(sys.argv[1]).write_text(json.dumps(everyones))
    finally:
        gc.collect()  # wrappers are parts of cycles and keep their group, whose threads (gloo's) must end before Python
        dist.destroy_process_group()
