"""How the ranks of a command on several hosts meet in the launcher's store, and part with one status."""

from __future__ import annotations

import json
import os
import platform
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import ringdp
from ringdp.tools.hosts.network import HostError, Interface, chosen, interfaces, join_store
from ringdp.tools.tune import cache

SLACK_S = 10.0  # that a rank may be behind another one


@dataclass(frozen=True)
class Place:
    """This rank among all, as launchers say it. agent: the launcher serves the store."""

    rank: int
    world: int
    address: str
    port: int
    agent: bool

    @staticmethod
    def of(environment: Mapping[str, str]) -> Place | None:
        """None where no launcher has set it. ValueError for a part that is missing or no number."""
        if "RANK" not in environment:
            return None
        missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
        if missing:
            raise ValueError(f"RANK is set, but not {', '.join(missing)}: a launcher sets all of them")
        numbers = {name: environment[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
        for name, text in numbers.items():
            if not text.isdecimal():
                raise ValueError(f"invalid value '{text}' for {name} (expected a whole number)")
        rank, world, port = (int(text) for text in numbers.values())
        if rank >= world:
            raise ValueError(f"invalid value '{rank}' for RANK (expected a number below WORLD_SIZE={world})")
        agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return Place(rank, world, environment["MASTER_ADDR"], port, agent)


def interface_of(place: Place) -> tuple[Interface, str]:
    """The interface that ringdp binds to between hosts, and why. ValueError where RINGDP_SOCKET_IFNAME names none."""
    named = next(row["value"] for row in ringdp._C.setting_table() if row["field"] == "socket_ifname")
    return chosen(interfaces(), place.address, named)


def info_of(rank: int, interface: Interface, why: str) -> dict[str, Any]:
    """What a rank says of itself: its host, address, versions, and the settings that are not at their defaults."""
    import torch

    table = cache.in_force(ringdp._C.setting_table())
    boot, network = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.stat("/proc/self/ns/net").st_ino
    return {
        "rank": rank,
        "host": f"{boot}/{network}",  # without a network in common, two containers of a machine are two hosts
        "name": socket.gethostname(),
        "versions": {"ringdp": ringdp.__version__, "torch": torch.__version__, "Python": platform.python_version()},
        "settings": {row["variable"]: row["value"] for row in table if row["value"] != row["default"]},
        "interface": interface.name,
        "address": interface.address,
        "why": why,
        "megabits": interface.megabits,
        "interfaces": [vars(found) for found in interfaces()],
    }


class StoreExchange:
    """Values that ranks publish in the store and gather from it, under deadlines."""

    def __init__(self, store: Any, rank: int) -> None:
        self._store = store
        self._rank = rank

    def publish(self, topic: str, value: object) -> None:
        """This rank's value."""
        self._store.set(f"{topic}/{self._rank}", json.dumps(value))

    def gather(self, topic: str, ranks: Iterable[int], seconds: float) -> dict[int, Any]:
        """The values of these ranks, without those that have published none by then."""
        end = time.monotonic() + seconds
        return {rank: value for rank in ranks if (value := self._of(topic, rank, end)) is not None}

    def _of(self, topic: str, rank: int, end: float) -> Any:
        from torch.distributed import DistError

        key = f"{topic}/{rank}"
        try:
            self._store.wait([key], timedelta(seconds=max(0.001, end - time.monotonic())))
            return json.loads(self._store.get(key))
        except DistError:  # or the store is gone
            return None


def hosts_of(infos: Mapping[int, Mapping[str, Any]]) -> list[list[int]]:
    """Ranks by host, ascending."""
    found: dict[str, list[int]] = {}
    for rank in sorted(infos):
        found.setdefault(infos[rank]["host"], []).append(rank)
    return sorted(found.values())


@dataclass(frozen=True)
class Meeting:
    """Ranks that have found each other. infos: what those that came in time say of themselves, by rank."""

    place: Place
    timeout_s: float
    store: Any
    exchange: StoreExchange
    infos: dict[int, dict[str, Any]]

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host, the first of which is its leader; hosts by their leaders."""
        return hosts_of(self.infos)

    @property
    def absent(self) -> list[int]:
        """Ranks that did not come in time."""
        return sorted(set(range(self.place.world)) - set(self.infos))


def meet(place: Place, timeout_s: float, info: Mapping[str, Any]) -> Meeting:
    """Tells the others `info` and hears theirs; rank 0 waits `timeout_s` for them. HostError: this rank is left out."""
    from torch.distributed import PrefixStore

    begin = time.monotonic()
    serves = place.rank == 0 and not place.agent
    store = PrefixStore("ringdp/hosts", join_store(place.address, place.port, serves, timeout_s))
    exchange = StoreExchange(store, place.rank)
    exchange.publish("info", info)
    if place.rank == 0:
        left = timeout_s - (time.monotonic() - begin)
        exchange.publish("present", sorted(exchange.gather("info", range(place.world), left)))
    present = exchange.gather("present", [0], timeout_s + SLACK_S).get(0)
    if present is None:
        raise HostError(f"rank 0 has not come within {timeout_s + SLACK_S:g} s")
    if place.rank not in present:
        raise HostError(f"rank {place.rank} came after rank 0 had waited {timeout_s:g} s: start all hosts again")
    return Meeting(place, timeout_s, store, exchange, exchange.gather("info", present, SLACK_S))


def agree(meeting: Meeting, status: int, longest_s: float, stays_s: float = SLACK_S) -> int:
    """Rank 0's status on all ranks, which wait `longest_s` for it. HostError where rank 0 has none.

    Rank 0, whose host has the store, stays until they have it, at most `stays_s`.
    """
    exchange = meeting.exchange
    if meeting.place.rank == 0:
        exchange.publish("verdict", status)
        exchange.gather("done", (rank for rank in meeting.infos if rank), stays_s)
        return status
    verdict = exchange.gather("verdict", [0], longest_s).get(0)
    exchange.publish("done", True)
    if verdict is None:
        raise HostError("rank 0 has come to no verdict; its own output tells why")
    return int(verdict)
