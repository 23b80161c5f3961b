"""`python -m ringdp.cli.worker [-m] SCRIPT ...`: a rank of `ringdp run` where torch does not load ringdp by itself.

That is so with TORCH_DEVICE_BACKEND_AUTOLOAD=0, and where ringdp is on PYTHONPATH only. The script runs as
`python [-m] SCRIPT ...` runs it.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from ringdp import _register


def main(command: Sequence[str]) -> None:
    """Ends as the script does."""
    import torch  # noqa: F401

    _register.autoload()
    if command[0] == "-m":
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        sys.path[0] = os.path.dirname(os.path.realpath(command[0]))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
