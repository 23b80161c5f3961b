"""What one rank of `ringdp check-hosts` does. Rank 0 knows who has come, collects all results, and judges them."""

from __future__ import annotations

import json
import os
import platform
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import ringdp
from ringdp.tools.check_hosts.network import CheckError, Interface, Listener, chosen, interfaces, join_store, reach
from ringdp.tools.tune import cache

_REACH_AT_A_TIME = 16
_SLACK_S = 10.0  # that a rank may be behind another one


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


def info_of(rank: int, interface: Interface, why: str, port: int) -> dict[str, Any]:
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
        "port": port,
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
        from torch.distributed import DistStoreError

        key = f"{topic}/{rank}"
        try:
            self._store.wait([key], timedelta(seconds=max(0.001, end - time.monotonic())))
        except DistStoreError:
            return None
        return json.loads(self._store.get(key))


@dataclass(frozen=True)
class Results:
    """All that rank 0 has: infos and results of ranks that came and answered, by rank."""

    world: int
    timeout_s: float
    infos: dict[int, dict[str, Any]]
    results: dict[int, dict[str, Any]]

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host, the first of which is its leader; hosts by their leaders."""
        return hosts_of(self.infos)


def hosts_of(infos: Mapping[int, Mapping[str, Any]]) -> list[list[int]]:
    """Ranks by host, ascending."""
    found: dict[str, list[int]] = {}
    for rank in sorted(infos):
        found.setdefault(infos[rank]["host"], []).append(rank)
    return sorted(found.values())


def take_part(place: Place, timeout_s: float) -> tuple[StoreExchange, Results | None]:
    """Meets the others and looks at everything. Results on rank 0. CheckError when this rank cannot take part."""
    from torch.distributed import PrefixStore

    begin = time.monotonic()
    named = next(row["value"] for row in ringdp._C.setting_table() if row["field"] == "socket_ifname")
    interface, why = chosen(interfaces(), place.address, named)
    listener = Listener(interface.address)
    serves = place.rank == 0 and not place.agent
    store = PrefixStore("ringdp/check-hosts", join_store(place.address, place.port, serves, timeout_s))
    exchange = StoreExchange(store, place.rank)
    exchange.publish("info", info_of(place.rank, interface, why, listener.port))
    if place.rank == 0:
        left = timeout_s - (time.monotonic() - begin)
        exchange.publish("present", sorted(exchange.gather("info", range(place.world), left)))
    present = exchange.gather("present", [0], timeout_s + _SLACK_S).get(0)
    if present is None:
        raise CheckError(f"rank 0 has not come within {timeout_s + _SLACK_S:g} s")
    if place.rank not in present:
        raise CheckError(f"rank {place.rank} came after rank 0 had waited {timeout_s:g} s: start all hosts again")
    infos = exchange.gather("info", present, _SLACK_S)
    result = _look(store, exchange, place.rank, infos, listener)
    exchange.publish("result", result)
    if place.rank != 0:
        return exchange, None
    return exchange, Results(
        place.world, timeout_s, infos, exchange.gather("result", present, _longest(len(hosts_of(infos))))
    )


def _longest(hosts: int) -> float:
    """Seconds after which a rank that is still at it is not waited for."""
    from ringdp.tools.check_hosts.links import LIMIT_S

    return 2 * _SLACK_S + (2 + hosts) * LIMIT_S


def _look(
    store: Any, exchange: StoreExchange, rank: int, infos: dict[int, dict[str, Any]], listener: Listener
) -> dict[str, Any]:
    from ringdp.tools.check_hosts import links

    hosts = hosts_of(infos)
    [mine] = [host for host in hosts if rank in host]
    result: dict[str, Any] = {}
    if rank == mine[0]:
        leaders = [host[0] for host in hosts]
        result["reached"] = _reached(rank, leaders, infos)
        exchange.publish("reached", result["reached"])
        reached = exchange.gather("reached", leaders, _SLACK_S + len(leaders))
        listener.close()
        result["links"] = {}
        for number, pairs in enumerate(links.rounds(leaders)):
            for pair in pairs:
                if rank in pair and is_open(reached, pair[1], pair[0]):
                    result["links"][str(sum(pair) - rank)] = links.measure(store, rank, pair)
            exchange.publish(f"round-{number}", True)
            exchange.gather(f"round-{number}", leaders, links.LIMIT_S + _SLACK_S)
    else:
        listener.close()
    if len(mine) > 1:
        result["shared_memory"] = links.shared_memory(store, rank, mine)
    return result


def is_open(reached: Mapping[int, Mapping[str, Any]], source: int, target: int) -> bool:
    """Whether `source` can connect to `target`. Of a pair the higher rank connects to the lower one, in ringdp too."""
    return reached.get(source, {}).get(str(target), {}).get("outcome") == "open"


def _reached(rank: int, leaders: Sequence[int], infos: dict[int, dict[str, Any]]) -> dict[str, Any]:
    others = [leader for leader in leaders if leader != rank]
    with ThreadPoolExecutor(_REACH_AT_A_TIME) as pool:
        found = pool.map(lambda other: reach(infos[other]["address"], infos[other]["port"]), others)
        return {str(other): outcome for other, outcome in zip(others, found, strict=True)}


def agree(exchange: StoreExchange, results: Results | None, status: int, world: int, timeout_s: float) -> int:
    """Rank 0's status on all ranks; it stays until the others have it, because the store may be its own."""
    if results is not None:
        exchange.publish("verdict", status)
        exchange.gather("done", (rank for rank in results.infos if rank), _SLACK_S)
        return status
    longest = _longest(world)
    verdict = exchange.gather("verdict", [0], timeout_s + longest).get(0)
    exchange.publish("done", True)
    if verdict is None:
        raise CheckError("rank 0 has come to no verdict; its own output tells why")
    return int(verdict)
