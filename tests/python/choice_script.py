"""Two ranks, forked, train without an edit: each way to a group whose program does not name ringdp.

choice_script.py TIMEOUT_S WAY [WAY]: the ranks' ways, one for both or one each. A way is what is given to
init_process_group(), or: none (no name), device (torch's default for the CPU), mesh (init_device_mesh makes the group),
options (gloo's own), unset (rank without RINGDP_AS).
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from ringdp import _register
from torch.distributed.device_mesh import init_device_mesh


def make_group(way: str, rank: int, store: str, timeout: timedelta) -> None:
    """The default group, by a call that does not name ringdp."""
    where = {"init_method": f"file://{store}", "rank": rank, "world_size": 2, "timeout": timeout}
    if way == "none":
        dist.init_process_group(**where)
    elif way == "device":
        dist.init_process_group(dist.get_default_backend_for_device("cpu"), **where)
    elif way == "options":
        options = dist.distributed_c10d.ProcessGroupGloo._Options()
        dist.init_process_group("gloo", pg_options=options, **where)
    elif way == "mesh":
        master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
        if master:
            dist.FileStore(store).set("port", str(master.port))
        port = dist.FileStore(store).get("port").decode()
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        make_group.master = master  # lives as long as the group
        init_device_mesh("cpu", (2,))
    else:
        dist.init_process_group(way, **where)


def losses() -> list[float]:
    """Three steps of stock DDP on unequal data; the sum of all ranks' losses of each."""
    torch.manual_seed(7)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(3):
        optimizer.zero_grad()
        torch.manual_seed(10 * step + dist.get_rank())
        loss = model(torch.randn(4, 5)).square().mean()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        seen.append(total.item())
    return seen


def carrier(group: dist.ProcessGroup) -> str:
    """What really carries it, with the collectives that ringdp has counted."""
    backend = group._get_backend(torch.device("cpu"))
    return f"ringdp {backend.counters()['collectives'] > 0}" if hasattr(backend, "counters") else "torch"


def as_rank(rank: int, way: str, store: str, timeout: timedelta) -> None:
    """Prints what rank 0 has seen."""
    if way == "unset":
        os.environ.pop("RINGDP_AS", None)
        way = "gloo"
    _register.autoload()  # torch's import, which is over in a kept process, calls it
    make_group(way, rank, store, timeout)
    print_once = print if rank == 0 else lambda *_: None
    print_once("losses", losses())
    named = dist.new_group([0, 1], backend="gloo")
    like = dist.new_group([0, 1])
    dist.barrier(named)
    dist.barrier(like)
    print_once("carried by", ", ".join(carrier(group) for group in (dist.group.WORLD, named, like)))
    print_once("named", dist.get_backend(), dist.get_backend(named), dist.get_default_backend_for_device("cpu"))
    dist.monitored_barrier(named)
    dist.destroy_process_group()


def main(timeout_s: str, *ways: str) -> int:
    """1 when a rank has failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(2):
            ranks.append(os.fork())
            if not ranks[-1]:
                try:
                    as_rank(rank, ways[rank % len(ways)], f"{folder}/store", timedelta(seconds=float(timeout_s)))
                except Exception as error:
                    print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)
                    failed = 1
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(failed)
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
