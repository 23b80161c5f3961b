"""Two forked ranks run a program of programs/ three times: as it is, with its trainer's line, and with RINGDP_AS=gloo.

ways_script.py PROGRAM FOLDER [WAY ...]: prints what each rank had from each way, and what carried it. The program is
imported once, before the fork, and the environment is that of torchrun.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from ringdp import _register

RANKS = 2


def carrier() -> str:
    """What carries the default group: torch, or ringdp after some collectives."""
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    return "ringdp" if hasattr(backend, "counters") and backend.counters()["collectives"] else "torch"


def as_rank(rank: int, program: ModuleType, folder: Path, ways: list[str]) -> dict[str, Any]:
    """What this rank has from each way."""
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    meeting = dist.FileStore(str(folder / "store"))
    if master:
        meeting.set("port", str(master.port))
    port = meeting.get("port").decode()
    local = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "ways"}
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **local)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    found = {}
    for number, way in enumerate(ways):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)  # keys of its own in the store
        if way == "as-gloo":  # the last one: this cannot be undone
            os.environ["RINGDP_AS"] = "gloo"
            _register.autoload()  # torch's import, which is over, calls it
        (folder / way).mkdir(exist_ok=True)
        result = program.train(str(folder / way), way)
        found[way] = {"carrier": carrier(), "result": result}
        dist.barrier()
        dist.destroy_process_group()
    meeting.add("done", 1)
    while master and meeting.add("done", 0) < RANKS:  # others may still read from the master
        pass
    return found


def main(name: str, folder: str, *ways: str) -> int:
    """1 when a rank has failed."""
    sys.path.insert(0, str(Path(__file__).with_name("programs")))
    program = importlib.import_module(name)
    torch.set_num_threads(1)
    ranks = []
    for rank in range(RANKS):
        ranks.append(os.fork())
        if not ranks[-1]:
            status = 1
            try:
                found = as_rank(rank, program, Path(folder), list(ways))
                (Path(folder) / f"rank-{rank}.json").write_text(json.dumps(found))
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
