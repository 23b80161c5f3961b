"""One of the two ranks of fat_pipes.py: an all_reduce over ringdp and gloo, and what plain sockets need for its bytes.

The JOB of runner/job.py is the JSON of Job. Clocks are those of one machine, so begins and ends of ranks compare.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from runner.job import change_network, serve

WARM_UP = 1
STREAMS = (1, 8)
PIECE = 256 << 10


@dataclass(frozen=True)
class Job:
    """Bytes of the tensors, how often each is summed, and whether the hosts move apart once everything is made."""

    sizes: list[int]
    rounds: int
    grows: bool
    backend: str = "ringdp"


class Sockets:
    """Connections between the two ranks as the kernel makes them, over which both send the same number of bytes."""

    def __init__(self, count: int) -> None:
        rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
        key = f"sockets {count}"
        if rank == 0:
            with socket.create_server((os.environ["MASTER_ADDR"], 0), backlog=count) as listener:
                store.set(key, str(listener.getsockname()[1]))
                self.sockets = [listener.accept()[0] for _ in range(count)]
        else:
            address = (os.environ["MASTER_ADDR"], int(store.get(key)))
            self.sockets = [socket.create_connection(address) for _ in range(count)]

    def exchange(self, size: int) -> None:
        """Sends and receives so many bytes, an equal part on each connection, all at the same time."""
        part = size // len(self.sockets)
        payload = memoryview(bytes(part))
        threads = [threading.Thread(target=one.sendall, args=(payload,)) for one in self.sockets]
        threads += [threading.Thread(target=_receive, args=(one, part)) for one in self.sockets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _receive(one: socket.socket, size: int) -> None:
    piece = memoryview(bytearray(PIECE))
    while size > 0:
        got = one.recv_into(piece, min(size, PIECE))
        if got == 0:
            raise ConnectionError("the other rank has closed a plain connection")
        size -= got


def summed(group: dist.ProcessGroup, size: int) -> Callable[[], None]:
    """An all_reduce of float32 tensors of so many bytes, made ready."""
    tensor = torch.full((size // 4,), float(dist.get_rank() + 1))

    def call() -> None:
        dist.all_reduce(tensor, group=group)

    return call


def calls_of(
    groups: dict[str, dist.ProcessGroup], plain: dict[int, Sockets], size: int
) -> dict[str, Callable[[], Callable[[], None]]]:
    """By candidate, what makes a call ready that moves so many bytes."""
    calls: dict[str, Callable[[], Callable[[], None]]] = {}
    for name, group in groups.items():
        calls[name] = partial(summed, group, size)
    for count, sockets in plain.items():
        calls[f"{count} sockets"] = partial(partial, sockets.exchange, size)
    return calls


def run(job: Job) -> dict[str, Any]:
    """Begin and end by size, candidate and round. Collective."""
    groups = {name: dist.new_group(backend=name, group_desc=name) for name in ("ringdp", "gloo")}
    plain = {count: Sockets(count) for count in STREAMS}
    for group in groups.values():
        summed(group, 4096)()
    if job.grows:
        if dist.get_rank() == 0:
            change_network()
        dist.barrier()
    times: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for size in job.sizes:
        calls = calls_of(groups, plain, size)
        found = times[str(size)] = {name: [] for name in calls}
        for number in range(WARM_UP + job.rounds):
            for name in random.Random(number).sample(list(calls), len(calls)):
                call = calls[name]()
                dist.barrier()
                began = time.monotonic()
                call()
                if number >= WARM_UP:
                    found[name].append((began, time.monotonic()))
    check(groups)
    return {"times": times}


def check(groups: dict[str, dist.ProcessGroup]) -> None:
    """RuntimeError when a sum is wrong."""
    for name, group in groups.items():
        tensor = torch.full((1 << 20,), float(dist.get_rank() + 1))
        dist.all_reduce(tensor, group=group)
        if not torch.equal(tensor, torch.full_like(tensor, 3.0)):
            raise RuntimeError(f"an all_reduce over {name} is wrong")


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
