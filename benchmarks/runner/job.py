"""Starts the torch ranks of a job, on this host or in namespaces with shaped links, and reads their results.

A rank is started as `python -m MODULE RESULT JOB` (JOB: JSON; rank and address come from the environment, as torchrun
sets them); its module calls serve().
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from runner.hosts import Distance, Hosts
from runner.session import free_port

HERE = str(Path(__file__).resolve().parent.parent)
PORT = 29501  # the store's between hosts, whose networks are their own
LIMIT_S, CHANGE_S = 1200, 30
ASKED, DONE = "change", "changed"  # files of a job whose network changes meanwhile


def run_job(
    module: str,
    job: Mapping[str, Any],
    ranks: int,
    hosts: int = 1,
    gigabits: float = 0.0,
    variables: Mapping[str, str] | None = None,
    started: Callable[[Sequence[int]], None] = lambda pids: None,
    distance: Distance | None = None,
    python: str = sys.executable,
    change: Callable[[Hosts], object] | None = None,
) -> list[Any]:
    """`python -m module RESULT JOB` on every rank ; their results, by rank.

    hosts 1: this one. variables: of the ranks' environment. started: is told the ranks' pids. distance: between hosts.
    python: of the ranks. change: what becomes of the network when rank 0 calls change_network(). RuntimeError with a
    rank's last words when one fails.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="job-")))
        network = stack.enter_context(Hosts(hosts, gigabits, distance)) if hosts > 1 else None
        address, port = (network.addresses[0], PORT) if network else ("127.0.0.1", free_port())
        processes = []
        for rank in range(ranks):
            command = [python, "-m", module, str(folder / "result.json"), json.dumps(job)]
            if network:
                command = network.command(rank * hosts // ranks, command)
            environment = _environment(rank, ranks, address, port, between_hosts=network is not None)
            environment.update(variables or {})
            log = stack.enter_context(open(folder / f"log-{rank}", "wb"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            stack.callback(_end, process)
            processes.append(process)
        started([process.pid for process in processes])
        if network and change:
            threading.Thread(target=_change_when_asked, args=(network, folder, change), daemon=True).start()
        for rank, process in enumerate(processes):
            if process.wait(LIMIT_S):
                words = (folder / f"log-{rank}").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"rank {rank} ended with status {process.returncode}: {words}")
        return json.loads((folder / "result.json").read_text())


def _environment(rank: int, ranks: int, address: str, port: int, between_hosts: bool) -> dict[str, str]:
    path = os.pathsep.join(p for p in (HERE, os.environ.get("PYTHONPATH", "")) if p)
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    variables |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    interface = "eth0" if between_hosts else "lo"
    variables |= {"GLOO_SOCKET_IFNAME": interface}
    if between_hosts:
        variables |= {"RINGDP_SOCKET_IFNAME": interface}
    return variables


def _change_when_asked(network: Hosts, folder: Path, change: Callable[[Hosts], object]) -> None:
    while folder.exists():
        if (folder / ASKED).exists():
            change(network)
            (folder / DONE).touch()
            return
        time.sleep(0.05)


def change_network() -> None:
    """On rank 0: the network between the hosts changes now."""
    folder = Path(sys.argv[1]).parent
    (folder / ASKED).touch()
    deadline = time.monotonic() + CHANGE_S
    while not (folder / DONE).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the network has not changed after {CHANGE_S} s: see the benchmark's own output")
        time.sleep(0.01)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def serve(run: Callable[[dict[str, Any]], Any]) -> None:
    """Joins a group over the job's "backend", runs it on one thread, leaves all ranks' results."""
    import torch  # takes seconds: programs that start ranks do without
    import torch.distributed as dist

    torch.set_num_threads(1)
    job = json.loads(sys.argv[2])
    dist.init_process_group(job["backend"])
    try:
        result = run(job)
        results: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(results, result)
        if dist.get_rank() == 0:
            Path(sys.argv[1]).write_text(json.dumps(results))
    finally:
        gc.collect()  # wrappers are parts of cycles and keep their group, whose threads (gloo's) must end before Python
        dist.destroy_process_group()
