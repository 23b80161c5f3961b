"""What is measured between hosts: the path that their bytes take, and benchmarks whose sizes suit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2

from ringdp.tools.tune.microbenchmark import KIB, MIB, Microbenchmark, doublings

FIELDS = ("tcp_streams", "exchange_bytes")
_STREAMS = (0, 1, 2, 4, 8)
_DEMAND = {"order": "rank", "wire": "fp32", "transport": "auto"}
_CALLS_S = 0.02  # calls in a row that take about so long
_ROUNDS = 8
_LEAST_BYTES, _MOST_BYTES = 64 * KIB, 64 * MIB


@dataclass(frozen=True)
class Path:
    """Between one rank on each of so many hosts: the longest round trip, and what each host sends to all others."""

    hosts: int
    round_trip_s: float
    bits_per_s: float

    @property
    def bytes_per_s(self) -> float:
        """Of payload."""
        return self.bits_per_s / 8

    @property
    def most_calls(self) -> int:
        """Small calls that are timed together."""
        return max(1, min(20, int(_CALLS_S / self.round_trip_s)))


def streams_benchmark(path: Path, seconds: float, in_force: int) -> Microbenchmark:
    """`tcp_streams`, by tensors that take long enough for it to matter, and short enough for some rounds."""
    values = tuple(dict.fromkeys((in_force, *_STREAMS)))
    call_s = max(seconds / (_ROUNDS * len(values) * 5), 2 * path.round_trip_s)
    size = path.bytes_per_s * (call_s - path.round_trip_s) * path.hosts / (2 * (path.hosts - 1))
    small = _power(min(max(size, _LEAST_BYTES), _MOST_BYTES / 4))
    candidates = tuple({**_DEMAND, "algorithm": "auto", "tcp_streams": value} for value in values)
    sizes = (small, 4 * small)
    return Microbenchmark("tcp_streams", path.hosts, candidates, sizes, crossing=False, values=values, doubling=True)


def exchange_benchmark(path: Path, streams: int) -> Microbenchmark:
    """The largest tensor that all send to all, over links of so many streams; for three and more hosts.

    Exchange saves half a round trip: it should be worth what a link carries in that time.
    """
    expected = exchange_limit(path.bytes_per_s * path.round_trip_s / 2, path.hosts)
    middle = _power(min(max(expected, 8 * KIB), _MOST_BYTES / 4))
    candidates = tuple({**_DEMAND, "algorithm": name, "tcp_streams": streams} for name in ("exchange", "direct"))
    sizes = doublings(middle // 8, 4 * middle)
    return Microbenchmark("exchange_bytes", path.hosts, candidates, sizes, most_calls=path.most_calls)


# csrc/plan/exchange.cc: with N ranks, exchange sends (N-1)(N-2)/N of the tensor more than direct.


def exchange_limit(more: float, hosts: int) -> float:
    """The largest tensor for which a rank sends at most `more` bytes beyond those of direct."""
    return more * hosts / ((hosts - 1) * (hosts - 2))


def is_alike(field: str, value: int, in_force: Mapping[str, int]) -> bool:
    """Whether a value is as good as the one in force: limits within a factor of two are."""
    other = in_force[field]
    return value == other or (field == "exchange_bytes" and max(value, other) <= 2 * min(value, other))


def exchange_bytes(size: int, hosts: int) -> int:
    """The setting with which tensors up to `size` are exchanged."""
    return ceil(size * (hosts - 1) * (hosts - 2) / hosts)


def probe_sizes() -> Sequence[int]:
    """Of the tensors with which a path's rate is found, until one takes long enough."""
    return [_LEAST_BYTES << 2 * i for i in range(6)]


def takes_long(seconds: float, round_trip_s: float) -> bool:
    """Whether a call of that time tells the rate."""
    return seconds > max(0.1, 4 * round_trip_s)


def path_of(hosts: int, round_trip_s: float, size: int, seconds: float) -> Path:
    """By an all_reduce of `size` that took so long: its direct plan waits for one round trip."""
    sent = 2 * size * (hosts - 1) / hosts
    return Path(hosts, round_trip_s, 8 * sent / max(seconds - round_trip_s, seconds / 10))


def _power(size: float) -> int:
    return 1 << round(log2(size))
