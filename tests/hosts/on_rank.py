"""What a rank of the host tests does: `on_rank.py TASK FOLDER`. No import of ringdp, as in a user's script."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from expected import all_reduced, same_bits, scattered, values
from kernel_tables import SpyingStore, local_addresses, sent_on

LARGE = 8 << 20  # elements of fp32; a multiple of 2 and 4
COUNTS = [1, 3, 1000, 300_001]
DTYPES = [torch.float32, torch.bfloat16]


def backend() -> Any:
    """The backend object under the default group."""
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def identity() -> dict[str, Any]:
    """Who this rank is, and how it reaches the others."""
    described = backend().describe().splitlines()
    return {"rank": dist.get_rank(), "pid": os.getpid(), "described": described}


def wrong(name: str, got: torch.Tensor, expected: torch.Tensor) -> list[str]:
    """The name, when the bits differ."""
    return [] if same_bits(got, expected) else [f"{name} of {expected.numel()} {expected.dtype}"]


def check(count: int, dtype: torch.dtype) -> list[str]:
    """Every collective once; those that differ from the oracle."""
    rank, world, order = dist.get_rank(), dist.get_world_size(), os.environ.get("RINGDP_ORDER", "rank")
    mine = values(rank, count, dtype)
    bad = []
    for op, divisor in [(dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, world)]:
        summed = mine.clone()
        dist.all_reduce(summed, op)
        bad += wrong("all_reduce", summed, all_reduced(world, count, dtype, order, divisor))
    for root in range(world):
        sent = values(rank, count, dtype)
        dist.broadcast(sent, root)
        bad += wrong(f"broadcast from {root}", sent, values(root, count, dtype))
    gathered = torch.empty(world * count, dtype=dtype)
    dist.all_gather_into_tensor(gathered, mine)
    bad += wrong("all_gather", gathered, torch.cat([values(r, count, dtype) for r in range(world)]))
    part = torch.empty(count, dtype=dtype)
    dist.reduce_scatter_tensor(part, values(rank, world * count, dtype))
    return bad + wrong("reduce_scatter", part, scattered(rank, world, count, dtype, order))


def check_all() -> list[str]:
    """Every collective in all types and sizes; those that differ from the oracle."""
    return [line for dtype in DTYPES for count in COUNTS for line in check(count, dtype)]


def collectives() -> dict[str, Any]:
    """All collectives, by the oracle."""
    dist.init_process_group("ringdp")
    wrongs = check_all()
    began = time.monotonic()
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(0.5)  # the barrier must hold the others
    entered = time.monotonic()
    dist.barrier()
    return {**identity(), "wrong": wrongs, "began": began, "entered": entered, "released": time.monotonic()}


def traffic() -> dict[str, Any]:
    """All collectives, by the oracle; one large all_reduce, with what counters and the interfaces say about it."""
    dist.init_process_group("ringdp")
    wrongs = check_all()
    tensor = values(dist.get_rank(), LARGE, torch.float32)
    expected = all_reduced(dist.get_world_size(), LARGE, torch.float32, os.environ.get("RINGDP_ORDER", "rank"))
    dist.barrier()  # a rank that has heard all others has their earlier bytes, and they have its own
    counted, sent = backend().counters(), {name: sent_on(name) for name in ("eth0", "eth1")}
    dist.all_reduce(tensor)
    after = backend().counters()
    dist.barrier()
    report = {"wrong": wrongs + wrong("all_reduce", tensor, expected), "bytes": tensor.nbytes}
    report["counted"] = {name: after[name] - counted[name] for name in after}
    report["sent"] = {name: sent_on(name) - sent[name] for name in sent}
    return {**identity(), **report}


def selftest() -> dict[str, Any]:
    """Every op, element type and reduce operation of `ringdp selftest`; those that went wrong."""
    from ringdp.selftest.cases import FAMILIES, cases_of
    from ringdp.selftest.seat import Seat
    from ringdp.selftest.verdict import WRONG, judge

    dist.init_process_group("ringdp")
    seat = Seat(dist.get_rank(), dist.get_world_size())
    verdicts = {str(case): judge(seat, case) for case in cases_of(FAMILIES, seat.size)}
    wrongs = [f"{case}: {verdict.why}" for case, verdict in verdicts.items() if verdict.kind == WRONG]
    return {**identity(), "wrong": wrongs, "cases": len(verdicts)}


def join() -> dict[str, Any]:
    """Only the group: the addresses it listens at while it is made, and those of its connections; or the error."""
    rank, world, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    server = dist.TCPStore(os.environ["MASTER_ADDR"], port, world, rank == 0, wait_for_workers=False)
    before = local_addresses("listening")
    store = SpyingStore(server)
    try:
        dist.init_process_group("ringdp", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=20))
    except Exception as error:
        # The store must outlive the others' attempts.
        server.add("failed", 1)
        while rank == 0 and server.add("failed", 0) < world:
            time.sleep(0.01)
        return {"error": f"{type(error).__name__}: {error}"}
    connected = [address for address, port_of_peer in local_addresses("connected") if port not in port_of_peer]
    listened = [address for address, _ in store.listeners - before]
    after = [address for address, _ in local_addresses("listening") - before]
    dist.barrier()  # a rank that ends closes its peers' connections: not before they have looked
    return {**identity(), "listened": listened, "connected": connected, "still_listening": after}


def sums() -> dict[str, Any]:
    """Some all_reduces of 4 MiB, which leave a trace where one was asked for."""
    dist.init_process_group("ringdp")
    for _ in range(10):
        dist.all_reduce(torch.ones(1 << 20))
    return identity()


def train() -> dict[str, Any]:
    """All-reduces until something goes wrong: what, when, and how long leaving took."""
    dist.init_process_group("ringdp", timeout=timedelta(seconds=60))
    tensor, steps, error = torch.ones(100_000), 0, None
    report = identity()
    while error is None:
        try:
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
        except Exception as caught:
            error, told = f"{type(caught).__name__}: {caught}", time.monotonic()
        steps += 1
        if steps == 20:
            (Path(sys.argv[2]) / f"running-{dist.get_rank()}").touch()
    dist.destroy_process_group()
    return {**report, "error": error, "told": told, "left": time.monotonic()}


def train_until_told() -> dict[str, Any]:
    """All-reduces until the file "stop" is there: what has gone wrong by then."""
    folder, go_on, steps, error = Path(sys.argv[2]), torch.ones(1), 0, ""
    dist.init_process_group("ringdp", timeout=timedelta(seconds=60))
    try:
        while go_on.item() > 0:
            go_on.fill_(float(not (folder / "stop").exists()))
            dist.all_reduce(go_on, dist.ReduceOp.MIN)
            steps += 1
            if steps == 20:
                (folder / f"running-{dist.get_rank()}").touch()
    except dist.DistBackendError as caught:
        error = str(caught)
    return {**identity(), "error": error}


def main() -> None:
    """Leaves what the task returns in the folder, by rank."""
    tasks: dict[str, Callable[[], dict[str, Any]]] = {
        t.__name__: t for t in (collectives, traffic, selftest, join, sums, train, train_until_told)
    }
    torch.set_num_threads(1)
    report = tasks[sys.argv[1]]()
    (Path(sys.argv[2]) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(report))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
