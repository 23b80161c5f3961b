"""What a rank of the host tests does: `on_rank.py TASK FOLDER`. No import of ringdp, as in a user's script.

It compares results with what one process computes, and looks at its sockets and interfaces as the kernel lists them.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

GIANT = 2.0**24


def values(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Rank's real-valued input. Ranks 1 and 2 have giants that cancel, so that also a 16-bit sum shows its order."""
    generator = torch.Generator().manual_seed(1000 + rank)
    numbers = torch.randn(count, generator=generator) * 3
    if rank in (1, 2):
        numbers[::7] = GIANT if rank == 1 else -GIANT
    return numbers.to(dtype)


def widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def fold(tensors: Iterable[Tensor], divisor: int = 1) -> Tensor:
    """((t0 + t1) + t2) + ..., 16-bit in fp32; divided, and rounded once."""
    tensors = list(tensors)
    total = widened(tensors[0])
    for tensor in tensors[1:]:
        total = total + widened(tensor)
    return (total / divisor).to(tensors[0].dtype)


def along_tree(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of the first half, with the middle one, + that of the other half; in fp32."""
    if len(tensors) == 1:
        return widened(tensors[0])
    middle = (len(tensors) + 1) // 2
    return along_tree(tensors[:middle]) + along_tree(tensors[middle:])


def parts(count: int, world: int) -> list[slice]:
    """The balanced division of `count` elements: sizes differ by at most one, the larger parts first."""
    base, extra = divmod(count, world)
    ends = [base * (i + 1) + min(i + 1, extra) for i in range(world)]
    return [slice(end - base - (i < extra), end) for i, end in enumerate(ends)]


def all_reduced(world: int, count: int, dtype: torch.dtype, order: str = "rank", divisor: int = 1) -> Tensor:
    """What all_reduce gives. `rotated`: chunk c is summed from rank c on."""
    inputs = [values(rank, count, dtype) for rank in range(world)]
    if order == "tree":
        return (along_tree(inputs) / divisor).to(dtype)
    if order == "rank":
        return fold(inputs, divisor)
    chunks = parts(count, world)
    return torch.cat([fold((inputs[(c + i) % world][chunks[c]] for i in range(world)), divisor) for c in range(world)])


def scattered(rank: int, world: int, count: int, dtype: torch.dtype, order: str = "rank") -> Tensor:
    """What reduce_scatter of `world * count` elements gives a rank. `rotated`: summed from rank + 1 on."""
    first = rank + 1 if order == "rotated" else 0
    whole = [values((first + i) % world, world * count, dtype) for i in range(world)]
    own = [tensor[rank * count : (rank + 1) * count] for tensor in whole]
    return along_tree(own).to(dtype) if order == "tree" else fold(own)


def same_bits(got: Tensor, expected: Tensor) -> bool:
    """Equal in every bit."""
    return got.dtype == expected.dtype and bool(torch.equal(got.view(torch.uint8), expected.view(torch.uint8)))


STATES = {"listening": "0A", "connected": "01"}
FRAME_HEADERS = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps


def own_sockets() -> set[str]:
    """Inodes of this process's sockets."""
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes


def local_addresses(state: str) -> set[tuple[str, tuple[int, int]]]:
    """(local address, (local port, remote port)) of this process's TCP sockets over IPv4 in that state."""
    inodes, found = own_sockets(), set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == STATES[state] and fields[9] in inodes:
            (local, port), (_, remote) = fields[1].split(":"), fields[2].split(":")
            address = socket.inet_ntoa(struct.pack("=I", int(local, 16)))
            found.add((address, (int(port, 16), int(remote, 16))))
    return found


def sent_on(interface: str) -> int:
    """Bytes that an interface of this host has sent, without the headers of its packets."""
    counted = Path("/sys/class/net") / interface / "statistics"
    packets, total = (int((counted / name).read_text()) for name in ("tx_packets", "tx_bytes"))
    return total - packets * FRAME_HEADERS


class SpyingStore(dist.Store):
    """A store that notes where this process listens whenever something is published: then listeners are open."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store
        self.listeners: set[tuple[str, tuple[int, int]]] = set()

    def set(self, key: str, value: str | bytes) -> None:
        """Looks, then publishes."""
        self.listeners |= local_addresses("listening")
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """As the store behind it."""
        return self._store.get(key)

    def add(self, key: str, amount: int) -> int:
        """As the store behind it."""
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """As the store behind it."""
        return self._store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """As the store behind it."""
        self._store.wait(keys, *([timeout] if timeout is not None else []))


LARGE = 8 << 20  # elements of fp32; a multiple of 2 and 4
COUNTS = [1, 3, 1000, 300_001]


def backend() -> Any:
    """The backend object under the default group."""
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def identity() -> dict[str, Any]:
    """The rank, its process, and how it reaches the others."""
    described = backend().describe().splitlines()
    return {"rank": dist.get_rank(), "pid": os.getpid(), "described": described}


def wrong(name: str, got: torch.Tensor, expected: torch.Tensor) -> list[str]:
    """The name, when the bits differ."""
    return [] if same_bits(got, expected) else [f"{name} of {expected.numel()} {expected.dtype}"]


def calls(count: int, dtype: torch.dtype) -> Iterator[tuple[str, dist.Work, Tensor, Tensor]]:
    """Every collective once, begun: its name, its end, the result then, and that of the oracle."""
    rank, world, order = dist.get_rank(), dist.get_world_size(), os.environ.get("RINGDP_ORDER", "rank")
    mine = values(rank, count, dtype)
    for op, divisor in [(dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, world)]:
        summed = mine.clone()
        work = dist.all_reduce(summed, op, async_op=True)
        yield "all_reduce", work, summed, all_reduced(world, count, dtype, order, divisor)
    for root in range(world):
        sent = values(rank, count, dtype)
        yield f"broadcast from {root}", dist.broadcast(sent, root, async_op=True), sent, values(root, count, dtype)
    gathered = torch.empty(world * count, dtype=dtype)
    work = dist.all_gather_into_tensor(gathered, mine, async_op=True)
    yield "all_gather", work, gathered, torch.cat([values(r, count, dtype) for r in range(world)])
    part = torch.empty(count, dtype=dtype)
    work = dist.reduce_scatter_tensor(part, values(rank, world * count, dtype), async_op=True)
    yield "reduce_scatter", work, part, scattered(rank, world, count, dtype, order)


def check_all() -> list[str]:
    """Every collective in all types and sizes, of one type in a row; those that differ from the oracle."""
    one_by_one = chain.from_iterable(calls(count, torch.float32) for count in COUNTS)
    in_a_row = list(chain.from_iterable(calls(count, torch.bfloat16) for count in COUNTS))
    bad = []
    for name, work, got, expected in chain(in_a_row, one_by_one):
        work.wait()
        bad += wrong(name, got, expected)
    return bad


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
    from ringdp.selftest.calls import RankContext
    from ringdp.selftest.cases import FAMILIES, cases_of
    from ringdp.selftest.rank import WRONG, judge

    dist.init_process_group("ringdp")
    seat = RankContext(dist.get_rank(), dist.get_world_size())
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


def paces() -> dict[str, Any]:
    """When each of some small calls began and ended, by what was called; the clock is that of all hosts here."""
    dist.init_process_group("ringdp")
    own, small = dist.get_rank(), 1024
    inputs = [values(rank, small, torch.float32) for rank in range(dist.get_world_size())]
    summed, parts_of_all = torch.empty(small), [torch.empty(small) for _ in inputs]
    direct = dist.new_group(backend="ringdp", pg_options={"algorithm": "direct"})
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(summed.copy_(inputs[own])),
        "all_reduce, direct": lambda: dist.all_reduce(inputs[own].clone(), group=direct),
        "barrier": dist.barrier,
        "broadcast": lambda: dist.broadcast(inputs[own].clone(), 0),
        "all_gather": lambda: dist.all_gather(parts_of_all, inputs[own]),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(4):
        for name, call in calls.items():
            began = time.monotonic()
            call()
            times[name].append((began, time.monotonic()))
    return {**identity(), "wrong": wrong("all_reduce", summed, fold(inputs)), "times": times}


def many() -> dict[str, Any]:
    """All collectives, by the oracle; then small sums, many in a row and some that are waited for one by one."""
    dist.init_process_group("ringdp")
    wrongs, inputs = check_all(), [values(rank, 64, torch.float32) for rank in range(dist.get_world_size())]
    tensors = [inputs[dist.get_rank()].clone() for _ in range(150)]
    in_a_row = [dist.all_reduce(tensor, async_op=True) for tensor in tensors[:100]]
    for work in in_a_row:
        work.wait()
    for tensor in tensors[100:]:
        dist.all_reduce(tensor)
    for tensor in tensors:
        wrongs += wrong("all_reduce", tensor, fold(inputs))
    return {**identity(), "wrong": wrongs}


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
        t.__name__: t for t in (collectives, traffic, selftest, join, sums, paces, many, train, train_until_told)
    }
    torch.set_num_threads(1)
    report = tasks[sys.argv[1]]()
    (Path(sys.argv[2]) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(report))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
