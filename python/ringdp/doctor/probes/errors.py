"""The exception that ends a rank, and on request the line of the script at which it is.

Record error: type, message. SIGUSR1 makes the rank write its Python stack to a file beside the records.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path
from types import TracebackType

import torch.distributed as dist

from ringdp.doctor.probes.rig import Rig

_MESSAGE = 2000


def install(rig: Rig, folder: Path) -> None:
    """Beside whatever the script does with its exceptions."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _is_rank():
            rig.write({"kind": "error", "type": kind.__name__, "message": str(error)[:_MESSAGE]})
        before(kind, error, trace)

    sys.excepthook = hook
    faulthandler.register(signal.SIGUSR1, file=stack_file(folder, os.getpid()).open("w"), all_threads=False)


def _is_rank() -> bool:
    """The launcher is none: it fails because a rank has."""
    return "RANK" in os.environ or (dist.is_available() and dist.is_initialized())


def stack_file(folder: Path, pid: int) -> Path:
    """Where this process writes its stack."""
    return folder / f"stack-{pid}.txt"
