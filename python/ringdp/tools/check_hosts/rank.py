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
from ringdp.tools.check_hosts.network import CheckError, Interface, Listener, chosen, interfaces, meet, reach
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


def card(rank: int, interface: Interface, why: str, port: int) -> dict[str, Any]:
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


class Meeting:
    """What ranks tell each other through the store, under deadlines."""

    def __init__(self, store: Any, rank: int) -> None:
        self._store = store
        self._rank = rank

    def tell(self, topic: str, value: object) -> None:
        """To all who ask for this rank's."""
        self._store.set(f"{topic}/{self._rank}", json.dumps(value))

    def heard(self, topic: str, ranks: Iterable[int], seconds: float) -> dict[int, Any]:
        """What each of these ranks told, but for those that have not by then."""
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
    """All that rank 0 has: cards and results of ranks that came and answered, by rank."""

    world: int
    timeout_s: float
    cards: dict[int, dict[str, Any]]
    results: dict[int, dict[str, Any]]

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host, the first of which is its leader; hosts by their leaders."""
        return hosts_of(self.cards)


def hosts_of(cards: Mapping[int, Mapping[str, Any]]) -> list[list[int]]:
    """Ranks by host, ascending."""
    found: dict[str, list[int]] = {}
    for rank in sorted(cards):
        found.setdefault(cards[rank]["host"], []).append(rank)
    return sorted(found.values())


def take_part(place: Place, timeout_s: float) -> tuple[Meeting, Results | None]:
    """Meets the others and looks at everything. Results on rank 0. CheckError when this rank cannot take part."""
    from torch.distributed import PrefixStore

    begin = time.monotonic()
    named = next(row["value"] for row in ringdp._C.setting_table() if row["field"] == "socket_ifname")
    interface, why = chosen(interfaces(), place.address, named)
    listener = Listener(interface.address)
    serves = place.rank == 0 and not place.agent
    store = PrefixStore("ringdp/check-hosts", meet(place.address, place.port, serves, timeout_s))
    meeting = Meeting(store, place.rank)
    meeting.tell("card", card(place.rank, interface, why, listener.port))
    if place.rank == 0:
        left = timeout_s - (time.monotonic() - begin)
        meeting.tell("present", sorted(meeting.heard("card", range(place.world), left)))
    present = meeting.heard("present", [0], timeout_s + _SLACK_S).get(0)
    if present is None:
        raise CheckError(f"rank 0 has not come within {timeout_s + _SLACK_S:g} s")
    if place.rank not in present:
        raise CheckError(f"rank {place.rank} came after rank 0 had waited {timeout_s:g} s: start all hosts again")
    cards = meeting.heard("card", present, _SLACK_S)
    result = _look(store, meeting, place.rank, cards, listener)
    meeting.tell("result", result)
    if place.rank != 0:
        return meeting, None
    return meeting, Results(
        place.world, timeout_s, cards, meeting.heard("result", present, _longest(len(hosts_of(cards))))
    )


def _longest(hosts: int) -> float:
    """Seconds after which a rank that is still at it is not waited for."""
    from ringdp.tools.check_hosts.links import LIMIT_S

    return 2 * _SLACK_S + (2 + hosts) * LIMIT_S


def _look(
    store: Any, meeting: Meeting, rank: int, cards: dict[int, dict[str, Any]], listener: Listener
) -> dict[str, Any]:
    from ringdp.tools.check_hosts import links

    hosts = hosts_of(cards)
    [mine] = [host for host in hosts if rank in host]
    result: dict[str, Any] = {}
    if rank == mine[0]:
        leaders = [host[0] for host in hosts]
        result["reached"] = _reached(rank, leaders, cards)
        meeting.tell("reached", result["reached"])
        reached = meeting.heard("reached", leaders, _SLACK_S + len(leaders))
        listener.close()
        result["links"] = {}
        for number, pairs in enumerate(links.rounds(leaders)):
            for pair in pairs:
                if rank in pair and is_open(reached, pair[1], pair[0]):
                    result["links"][str(sum(pair) - rank)] = links.measure(store, rank, pair)
            meeting.tell(f"round-{number}", True)
            meeting.heard(f"round-{number}", leaders, links.LIMIT_S + _SLACK_S)
    else:
        listener.close()
    if len(mine) > 1:
        result["shared_memory"] = links.shared_memory(store, rank, mine)
    return result


def is_open(reached: Mapping[int, Mapping[str, Any]], source: int, target: int) -> bool:
    """Whether `source` can connect to `target`. Of a pair the higher rank connects to the lower one, in ringdp too."""
    return reached.get(source, {}).get(str(target), {}).get("outcome") == "open"


def _reached(rank: int, leaders: Sequence[int], cards: dict[int, dict[str, Any]]) -> dict[str, Any]:
    others = [leader for leader in leaders if leader != rank]
    with ThreadPoolExecutor(_REACH_AT_A_TIME) as pool:
        found = pool.map(lambda other: reach(cards[other]["address"], cards[other]["port"]), others)
        return {str(other): outcome for other, outcome in zip(others, found, strict=True)}


def agree(meeting: Meeting, results: Results | None, status: int, world: int, timeout_s: float) -> int:
    """Rank 0's status on all ranks; it stays until the others have it, because the store may be its own."""
    if results is not None:
        meeting.tell("verdict", status)
        meeting.heard("done", (rank for rank in results.cards if rank), _SLACK_S)
        return status
    longest = _longest(world)
    verdict = meeting.heard("verdict", [0], timeout_s + longest).get(0)
    meeting.tell("done", True)
    if verdict is None:
        raise CheckError("rank 0 has come to no verdict; its own output tells why")
    return int(verdict)
