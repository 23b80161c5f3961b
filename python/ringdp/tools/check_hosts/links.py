"""Round trip and bandwidth between two hosts over ringdp's own links, and whether the ranks of a host share memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from ringdp.backend import _C, Options

LIMIT_S = 10.0  # for a group to be made, and for every message of it
_PINGS = 20
_FIRST_BYTES, _MOST_BYTES, _MESSAGES = 1 << 18, 1 << 27, 6
_MEASURED_S, _MEASURED_TRIPS = 0.1, 4  # a message takes so long, or so many round trips
_ONE_TRIP = {"algorithm": "direct", "order": "rank", "wire": "fp32"}  # with these a small all_reduce takes one
_WAITED_TRIPS = 3  # half of one for each of offer, accept and data; of the message, and of the receiver's answer


def rounds(members: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Every pair once, in rounds in which each member is in at most one pair (the circle method)."""
    circle: list[int | None] = list(members) + ([None] if len(members) % 2 else [])
    half, found = len(circle) // 2, []
    for _ in range(len(circle) - 1):
        pairs = [(circle[i], circle[-1 - i]) for i in range(half)]
        found.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        circle.insert(1, circle.pop())
    return found


def _group(store: Any, index: int, ranks: Sequence[int], name: str, **fields: str) -> Any:
    options = Options(timedelta(seconds=LIMIT_S), **fields)
    options.global_ranks_in_group = list(ranks)
    options.group_name = name
    return _C.Backend(store, index, len(ranks), name, options)


def measure(store: Any, rank: int, pair: tuple[int, int]) -> dict[str, Any]:
    """Both ranks call it: round_trip_s, and bits_per_s of what this rank sends; or the `error` of ringdp."""
    index = pair.index(rank)
    try:
        group = _group(store, index, pair, f"check-hosts/{pair[0]}-{pair[1]}", **_ONE_TRIP)
        try:
            trip = _round_trip(group)
            rates = [_rate(group, index, sender, trip) for sender in (0, 1)]
            return {"round_trip_s": trip, "bits_per_s": rates[index]}
        finally:
            group.shutdown()
    except RuntimeError as error:  # DistBackendError is one
        return {"error": str(error).splitlines()[0]}


def _send(group: Any, index: int, tensor: torch.Tensor) -> None:
    group.send([tensor], 1 - index, 0).wait()


def _receive(group: Any, index: int, tensor: torch.Tensor) -> torch.Tensor:
    group.recv([tensor], 1 - index, 0).wait()
    return tensor


def _round_trip(group: Any) -> float:
    token, times = torch.zeros(2), []
    for _ in range(_PINGS):
        begin = time.perf_counter()
        group.allreduce([token]).wait()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _rate(group: Any, index: int, sender: int, trip: float) -> float:
    """Bits per second of what `sender` sends: the best of some messages, of which a busy machine holds some up.

    Each is as large as takes _MEASURED_S, by those before it, the first of which is small. 0 on the other rank.
    """
    size, best = _FIRST_BYTES, 0.0
    for number in range(1 + _MESSAGES):
        announced = torch.tensor([size])
        if index != sender:
            size = int(_receive(group, index, announced))
            _receive(group, index, torch.empty(size, dtype=torch.uint8))
            _send(group, index, announced)
            continue
        _send(group, index, announced)
        payload = torch.zeros(size, dtype=torch.uint8)
        begin = time.perf_counter()
        _send(group, index, payload)
        _receive(group, index, announced)
        took = time.perf_counter() - begin
        rate = 8 * size / max(took - _WAITED_TRIPS * trip, took / 10)
        best = rate if number == 1 else max(best, rate)
        size = int(min(max(best / 8 * max(_MEASURED_S, _MEASURED_TRIPS * trip), _FIRST_BYTES), _MOST_BYTES))
    return best


def shared_memory(store: Any, rank: int, locals_: Sequence[int]) -> dict[str, Any]:
    """All ranks of a host call it: `shm`: whether they share memory; `why`: what ringdp says of the first pair."""
    try:
        group = _group(store, locals_.index(rank), locals_, f"check-hosts/host-{locals_[0]}")
    except RuntimeError as error:
        return {"shm": False, "why": str(error).splitlines()[0]}
    try:
        lines = [line.partition(": ")[2] for line in group.describe().splitlines() if line.startswith("rank ")]
    finally:
        group.shutdown()
    others = [line for line in lines if not line.startswith("shm")]
    return {"shm": not others, "why": (others or lines)[0]}
