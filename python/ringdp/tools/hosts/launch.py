"""From the command that starts a job to ranks of ringdp's own in its place: this host's part of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringdp.tools.hosts.network import HostError, addresses_of, interfaces, join_store

_STATIC_PORT, _RENDEZVOUS_PORT = 29500, 29400  # torchrun's own defaults
_LEAVE_S = 10.0


@dataclass(frozen=True)
class Launch:
    """`host`: the number of this host, None where torchrun, too, would number hosts as they come."""

    hosts: int
    ranks_per_host: int
    address: str
    port: int
    host: int | None

    @property
    def serves(self) -> bool:
        """Whether the store is on this host."""
        if self.host is not None:
            return self.host == 0
        return bool(addresses_of(self.address) & {found.address for found in interfaces()})


def launch_of(command: Sequence[str]) -> Launch:
    """What `torchrun ...` or `python -m torch.distributed.run ...` would start. ValueError for anything else."""
    from torch.distributed.run import determine_local_world_size, get_args_parser, parse_min_max_nnodes

    if Path(command[0]).name == "torchrun":
        words = command[1:]
    elif list(command[1:3]) == ["-m", "torch.distributed.run"]:
        words = command[3:]
    else:
        raise ValueError(
            f"'{command[0]}' is not torchrun: put its command after --, as it starts your job on this host"
        )
    options = get_args_parser().parse_args(words)  # with the variables PET_... that a cluster may have set
    hosts = parse_min_max_nnodes(options.nnodes)[1]
    ranks = determine_local_world_size(options.nproc_per_node)
    if options.standalone or (hosts == 1 and not options.rdzv_endpoint):
        return Launch(1, ranks, "127.0.0.1", 0, 0)
    if options.rdzv_backend == "static" and not options.rdzv_endpoint:
        return Launch(hosts, ranks, options.master_addr, options.master_port or _STATIC_PORT, options.node_rank)
    static = options.rdzv_backend == "static"
    found = re.fullmatch(r"(?:\[(.+)\]|([^:]+))(?::(\d+))?", options.rdzv_endpoint)
    if found is None:
        raise ValueError(
            f"invalid value '{options.rdzv_endpoint}' for --rdzv-endpoint (expected HOST, HOST:PORT or [ADDRESS]:PORT)"
        )
    port = int(found[3] or (_STATIC_PORT if static else _RENDEZVOUS_PORT))
    return Launch(hosts, ranks, found[1] or found[2], port, options.node_rank if static else None)


def run_ranks(launch: Launch, arguments: Sequence[str], timeout_s: float) -> int:
    """Starts `ringdp ARGUMENTS` as each of this host's ranks and waits for them: their worst status.

    A rank that a signal has ended is named, and counts as status 1. HostError: the store is out of reach.
    """
    store = join_store(launch.address, launch.port, launch.serves, timeout_s)
    number = launch.host
    if number is None:
        number = 0 if launch.serves else store.add("ringdp/hosts/number", 1)
    if number >= launch.hosts:
        raise HostError(f"{number + 1} hosts have come, and the command says --nnodes {launch.hosts}")
    command = [sys.executable, "-m", "ringdp", *arguments]
    first = number * launch.ranks_per_host
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for local in range(launch.ranks_per_host):
            place = {
                "RANK": first + local,
                "LOCAL_RANK": local,
                "WORLD_SIZE": launch.hosts * launch.ranks_per_host,
                "MASTER_ADDR": launch.address,
                "MASTER_PORT": store.port,
                "TORCHELASTIC_USE_AGENT_STORE": True,
            }
            told = {name: str(value) for name, value in place.items()}
            ranks.append(subprocess.Popen(command, env={**os.environ, **told}))
        return max(_status(first + local, rank.wait()) for local, rank in enumerate(ranks))
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()
        for rank in ranks:
            try:
                rank.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()


def _status(rank: int, code: int) -> int:
    if code >= 0:
        return code
    print(f"ringdp: rank {rank} was ended by {signal.Signals(-code).name}", file=sys.stderr, flush=True)
    return 1
