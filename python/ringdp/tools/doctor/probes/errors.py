"""The exception that ends a rank, and on request the line of the script at which it is.

Record error: type, message, place (the line of the script), time. SIGUSR1 makes the rank write its Python stack to a
file in the folder of the records.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

import torch.distributed as dist

from ringdp.tools.doctor.probes.context import ProbeContext

_MESSAGE = 2000
RINGDP = f"{Path(__file__).resolve().parents[3]}/"
_LIBRARY = re.compile(r"/lib(64)?/python3|/(site|dist)-packages/|^<frozen ")


def install(context: ProbeContext, folder: Path) -> None:
    """Chains to the script's own exception hooks instead of replacing them."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _is_rank():
            said = {"type": kind.__name__, "message": str(error)[:_MESSAGE]}
            context.write({"kind": "error", **said, "place": _place(trace), "time": time.time()})
        before(kind, error, trace)

    sys.excepthook = hook
    faulthandler.register(signal.SIGUSR1, file=stack_file(folder, os.getpid()).open("w"), all_threads=False)


def _is_rank() -> bool:
    """False in the launcher, which fails only because a rank has failed."""
    return "RANK" in os.environ or (dist.is_available() and dist.is_initialized())


def _place(trace: TracebackType | None) -> str:
    """'train.py, line 31 in main': the script's last frame; '' where it has none."""
    own = [frame for frame in traceback.extract_tb(trace) if of_script(frame.filename)]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno} in {own[-1].name}" if own else ""


def of_script(path: str) -> bool:
    """Whether a frame of this file is the user's own, and not Python's or a library's."""
    return not path.startswith(RINGDP) and not _LIBRARY.search(path)


def stack_file(folder: Path, pid: int) -> Path:
    """Where this process writes its stack."""
    return folder / f"stack-{pid}.txt"
