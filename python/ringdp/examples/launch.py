"""Starting the ranks of an example: torchrun does it. Without torchrun an example becomes torchrun, or starts one rank
on each of several hosts of this machine.

Also what ranks do outside collectives: they end on Ctrl-C or SIGTERM, and wait for work that only rank 0 does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch.distributed as dist

from ringdp.cli.arguments import positive
from ringdp.tools.netns.namespaces import Host

MAX_RANKS = 64  # here; torchrun starts more
LOOK_EVERY_S = 0.02


def started_by_torchrun() -> bool:
    """Whether this process is one of the ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def how_to_start(module: str) -> str:
    """Two command lines that work."""
    return (
        f"{module.rpartition('.')[2]} runs as several ranks. Start it with one of:\n"
        f"  torchrun --nproc-per-node 2 -m {module}\n"
        f"  {os.path.basename(sys.executable)} -m {module} --nproc 2"
    )


def torchrun_command(module: str, ranks: int, arguments: Sequence[str]) -> list[str]:
    """The torchrun line for `ranks` ranks here. Without --nproc, which torchrun would take for its own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nproc")
    _, others = parser.parse_known_args(arguments)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*torchrun, "-m", module, *others]


def become_torchrun(module: str, ranks: int, arguments: Sequence[str]) -> None:
    """Replace this process by torchrun, so that signals and exit status need no relay. Does not return."""
    # torchrun would set one thread per rank anyway, with a warning.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.stdout.flush()
    os.execv(sys.executable, torchrun_command(module, ranks, arguments))


def parser_for(module: str, description: str, ranks: int) -> argparse.ArgumentParser:
    """A command line with --nproc (default `ranks`) and --json; an example adds its own options."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=f"or: torchrun --nproc-per-node {ranks} -m {module}",
        allow_abbrev=False,
    )
    number = positive(int, MAX_RANKS)
    parser.add_argument("--nproc", type=number, default=ranks, metavar="N", help="ranks (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def on_ranks(
    module: str,
    options: argparse.Namespace,
    work: Callable[[], dict[str, Any]],
    render: Callable[[dict[str, Any]], str],
    problem: Callable[[int], str | None] = lambda ranks: None,
) -> int:
    """Runs `work` on every rank in a group over ringdp; rank 0 prints its report. The exit status.

    In a process that is no rank yet, torchrun takes over with `options.nproc` ranks. `problem` says what does not fit
    a number of ranks, or None; then status 2. Every rank computes on one thread, because only then do two processes
    add up in the same order.
    """
    is_rank = started_by_torchrun()
    rank, ranks = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if is_rank else (0, options.nproc)
    if wrong := problem(ranks):
        if rank == 0:
            print(f"{module.rpartition('.')[2]}: {wrong}", file=sys.stderr)
        return 2
    if not is_rank:
        become_torchrun(module, options.nproc, sys.argv[1:])
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("ringdp")
    try:
        report = work()
        if rank == 0:
            print(json.dumps(report) if options.json else render(report), flush=True)
    finally:
        dist.destroy_process_group()
    return 0


STORE_PORT = 29500  # of hosts whose networks are their own
END_S = 10.0  # for the other ranks to say what they have to say, once one has failed


def on_hosts(module: str, hosts: Sequence[Host], arguments: Sequence[str]) -> int:
    """One rank of an example on each of several hosts of this machine, to their end; the exit status of the first rank
    that fails, or 0.

    They share this process's output. Where one fails, or an exception passes here (Interrupt raises SystemExit), no
    rank stays behind. Main thread only.
    """
    common: dict[str, object] = {"WORLD_SIZE": len(hosts), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    common |= {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": STORE_PORT, "OMP_NUM_THREADS": 1}
    # Else torch warns on each that the others' addresses have no names.
    common["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")
    ranks: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        for rank, host in enumerate(hosts):
            command = host.command([sys.executable, "-m", module, *arguments])
            variables = {name: str(value) for name, value in {**common, "RANK": rank}.items()}
            # In sessions of their own, as a terminal's Ctrl-C would end each rank in the middle of a line.
            ranks.append(subprocess.Popen(command, env={**os.environ, **variables}, start_new_session=True))
            stack.callback(_end, ranks[-1])
        failed, deadline = 0, float("inf")
        while None in [rank.poll() for rank in ranks] and time.monotonic() < deadline:
            if not failed and (failed := _failure(ranks)):
                deadline = time.monotonic() + END_S
            time.sleep(LOOK_EVERY_S)
        return failed or _failure(ranks)


def _failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """As a shell tells it: 128 + n after signal n."""
    failed = next((rank.returncode for rank in ranks if rank.returncode), 0)
    return 128 - failed if failed < 0 else failed


def _end(rank: subprocess.Popen[bytes]) -> None:
    if rank.poll() is None:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()


class Interrupt:
    """Takes over SIGINT and SIGTERM. Main thread only.

    Outside `deferred()` a signal raises SystemExit(128 + number), which runs the clean-up on its way out.
    Inside, it is only remembered in `number`, so that the ranks can agree on the step after which they stop.
    torchrun sends a terminal's Ctrl-C a second time, so a repeated signal changes nothing.
    """

    def __init__(self) -> None:
        self.number = 0
        self._deferred = False

    def install(self) -> None:
        """From here on this object gets the process's signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Signals wait for the end of the block, unless the block itself acts on `number`."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        first, self.number = not self.number, number
        if first and not self._deferred:
            raise SystemExit(128 + number)


LIMIT_S = 1800.0


def on_rank_zero(name: str, work: Callable[[], str]) -> str:
    """Every rank returns what `work` gave on rank 0. One `name` for each call in the life of a process group.

    Raises TimeoutError where rank 0 has not finished after LIMIT_S seconds.
    """
    store, key = dist.distributed_c10d._get_default_store(), f"on_rank_zero/{name}"
    if dist.get_rank() == 0:
        result = work()
        store.set(key, result)
        return result
    deadline = time.monotonic() + LIMIT_S
    # Looking instead of blocking inside the store leaves signals a chance.
    while not store.check([key]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 has not finished '{name}' after {LIMIT_S:.0f} s")
        time.sleep(LOOK_EVERY_S)
    return str(store.get(key).decode())
