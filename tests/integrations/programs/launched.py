"""What a program does when it is started by torchrun or another launcher: PROGRAM FOLDER [WAY]."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist


def main(train: Callable[..., dict[str, Any]]) -> None:
    """Trains; rank 0 writes what came out to FOLDER/result.json."""
    arguments = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]  # DeepSpeed's launcher adds it
    result = train(*arguments)
    if dist.get_rank() == 0:
        Path(arguments[0], "result.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
