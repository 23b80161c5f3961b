"""Stands for torchrun in tests: warm_torchrun.py RANKS SCRIPT ... imports torch once and forks the ranks.

Whoever watches is told to the ranks only: it sets its hooks in each of them.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

_watcher = os.environ.pop("RINGDP_ATTACH", "")  # before torch is imported

import torch._dynamo  # noqa: E402, F401  # optimizers load it
import torch.distributed as dist  # noqa: E402
from ringdp import _register, backend  # noqa: E402, F401


def main(ranks: int, command: list[str]) -> int:
    """The status, 1 when that of a rank is not 0: then the others are ended. Ranks come back with their own."""
    reading, writing = os.pipe()
    running: list[int] = []
    started: list[int] = []
    for rank in range(ranks):
        pid = os.fork()
        if not pid:
            return as_rank(rank, ranks, reading, command)
        running.append(pid)
        started.append(pid)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(writing, b"%05d" % store.port * ranks)
    while running:
        pid, status = os.wait()
        running.remove(pid)
        if status:
            for other in running:
                os.kill(other, signal.SIGKILL)
            rank, code = started.index(pid), os.waitstatus_to_exitcode(status)
            print(
                f"Root Cause (first observed failure):\n  rank      : {rank} (local)\n  exitcode  : {code} (pid: {pid})"
            )
            return 1
    return 0


def as_rank(rank: int, ranks: int, reading: int, command: list[str]) -> int:
    """Runs the script with what torchrun tells a rank."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": int(os.read(reading, 5))}
    agent = {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
    os.environ.update({name: str(value) for name, value in {**own, **store, **agent}.items()})
    if _watcher:
        os.environ["RINGDP_ATTACH"] = _watcher
    _register.autoload()
    sys.argv = command
    sys.path[0] = os.path.dirname(command[0])
    runpy.run_path(command[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
