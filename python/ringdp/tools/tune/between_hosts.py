"""What a rank of `ringdp tune --hosts` does: one on each host measures over ringdp's own links, the others wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

import ringdp
from ringdp.text.units import byte_size, names, scaled, seconds
from ringdp.tools.hosts.meeting import Meeting
from ringdp.tools.hosts.network import HostError
from ringdp.tools.tune import cache
from ringdp.tools.tune.microbenchmark import Measured, Microbenchmark, judge
from ringdp.tools.tune.path import (
    FIELDS,
    Path,
    exchange_benchmark,
    exchange_bytes,
    is_alike,
    path_of,
    probe_sizes,
    streams_benchmark,
    takes_long,
)
from ringdp.tools.tune.rank import TIMEOUT, measure, timed
from ringdp.tools.tune.session import TuneError

_PROBES, _SMALL = 5, 1024  # calls, and elements, of which every rank owns some
_PARTS = 4  # each has connections of its own, because TCP's idea of a path stays with a connection
Say = Callable[[str], None]


@dataclass(frozen=True)
class Found:
    """What rank 0 has measured. in_force: the values with which it was started, by field."""

    path: Path
    in_force: dict[str, int]
    measured: tuple[Measured, ...]

    @property
    def environment(self) -> dict[str, str]:
        """What the job should set: values that are sure, where others are in force; by variable."""
        wanted = [row for row in self.measured if row.is_sure and not is_alike(row.field, row.value, self.in_force)]
        return {f"RINGDP_{row.field.upper()}": str(row.value) for row in wanted}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = {row.field: {**asdict(row), "is_sure": row.is_sure} for row in self.measured}
        path = {"round_trip_s": self.path.round_trip_s, "bits_per_s": self.path.bits_per_s}
        return {**path, "in_force": self.in_force, "measured": rows, "environment": self.environment}


def hosts_in(meeting: Meeting) -> list[dict[str, str]]:
    """Names, addresses and interfaces. TuneError names hosts that are missing; HostError: there is only one."""
    if meeting.absent:
        noun = "host" if len(meeting.hosts) == len(meeting.infos) else "rank"
        absent = f"{names(meeting.absent, noun)} of 0-{meeting.place.world - 1}"
        raise TuneError(
            f"{absent} did not come within {meeting.timeout_s:g} s: start the command on every host at the same time "
            "(--timeout waits longer); where it runs, its own output says why it cannot reach the others"
        )
    if len(meeting.hosts) == 1:
        name = meeting.infos[0]["name"]
        raise HostError(f"all ranks are on one host, {name}: ringdp tune without --hosts measures what holds there")
    return [
        {field: meeting.infos[host[0]][field] for field in ("name", "address", "interface")} for host in meeting.hosts
    ]


def measured(meeting: Meeting, seconds_in_all: float, say: Say) -> Found | None:
    """Of the first rank of each host; the others return at once. Rank 0 says how it gets on.

    TuneError when a rank fails or dies; the message is ringdp's, which names it.
    """
    leaders = [host[0] for host in meeting.hosts]
    if meeting.place.rank not in leaders:
        return None
    torch.set_num_threads(1)
    os.environ[cache.VARIABLE] = "off"
    ringdp.register()
    store = dist.PrefixStore("tune", meeting.store)
    options = ringdp.Options(algorithm="direct", order="rank", wire="fp32", transport="auto")
    in_force = {field: int(options.get(field)) for field in FIELDS}
    place = {"rank": leaders.index(meeting.place.rank), "world_size": len(leaders)}
    try:
        dist.init_process_group("ringdp", store=store, timeout=TIMEOUT, pg_options=options, **place)
        return Found(*_measure(len(leaders), in_force, seconds_in_all, say if meeting.place.rank == 0 else _nothing))
    except RuntimeError as error:  # DistBackendError is one
        raise TuneError(str(error).splitlines()[0]) from None
    finally:
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()


def _nothing(line: str) -> None:
    pass


def _measure(hosts: int, in_force: dict[str, int], seconds_in_all: float, say: Say) -> tuple[Any, ...]:
    path = _path(hosts)
    say(f"round trip {seconds(path.round_trip_s)}, {scaled(path.bits_per_s, 'b/s')}")
    share = seconds_in_all if hosts == 2 else seconds_in_all / 2
    streams = _found(streams_benchmark(path, share, in_force["tcp_streams"]), share, say)
    say(str(streams))
    if hosts == 2:
        say("exchange_bytes: no matter, two ranks send all to all at any size")
        return path, in_force, (streams,)
    chosen = int(_from_rank_0(streams.value if streams.is_sure else in_force["tcp_streams"]))
    exchange = _found(exchange_benchmark(path, chosen), share, say)
    exchange = replace(exchange, value=exchange_bytes(exchange.value, hosts))
    say(str(exchange))
    return path, in_force, (streams, exchange)


def _found(benchmark: Microbenchmark, for_s: float, say: Say) -> Measured:
    sizes = " to ".join(byte_size(size) for size in (benchmark.sizes[0], benchmark.sizes[-1]))
    say(f"measuring {benchmark.field}: tensors of {sizes}, for {for_s:g} s")
    parts = [measure(benchmark, for_s / _PARTS, first=part) for part in range(_PARTS)]
    return judge(benchmark, {size: [row for part in parts for row in part[size]] for size in benchmark.sizes})


def _path(hosts: int) -> Path:
    """As rank 0 measures it."""
    sizes = probe_sizes()
    memory = torch.zeros(sizes[-1] // 4)
    trip = _from_rank_0(min(timed(dist.group.WORLD, memory[:_SMALL]) for _ in range(_PROBES)))
    for size in sizes:
        took = _from_rank_0(min(timed(dist.group.WORLD, memory[: size // 4]) for _ in range(2)))
        if takes_long(took, trip):
            break
    return path_of(hosts, trip, size, took)


def _from_rank_0(value: float) -> float:
    told = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(told, 0)
    return float(told)
