"""What one rank of `ringdp check-hosts` does. Rank 0 knows who has come, collects all results, and judges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ringdp.tools.hosts.meeting import SLACK_S, Meeting, Place, hosts_of, info_of, interface_of, meet
from ringdp.tools.hosts.network import Listener, reach

_REACH_AT_A_TIME = 16


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


def take_part(place: Place, timeout_s: float) -> tuple[Meeting, Results | None]:
    """Meets the others and looks at everything. Results on rank 0. HostError when this rank cannot take part."""
    interface, why = interface_of(place)
    listener = Listener(interface.address)
    meeting = meet(place, timeout_s, {**info_of(place.rank, interface, why), "port": listener.port})
    result = _look(meeting, listener)
    meeting.exchange.publish("result", result)
    if place.rank != 0:
        return meeting, None
    found = meeting.exchange.gather("result", meeting.infos, longest_s(len(meeting.hosts)))
    return meeting, Results(place.world, timeout_s, meeting.infos, found)


def longest_s(hosts: int) -> float:
    """Seconds after which a rank that is still at it is not waited for."""
    from ringdp.tools.check_hosts.links import LIMIT_S

    return 2 * SLACK_S + (2 + hosts) * LIMIT_S


def _look(meeting: Meeting, listener: Listener) -> dict[str, Any]:
    from ringdp.tools.check_hosts import links

    rank, exchange, infos, hosts = meeting.place.rank, meeting.exchange, meeting.infos, meeting.hosts
    [mine] = [host for host in hosts if rank in host]
    result: dict[str, Any] = {}
    if rank == mine[0]:
        leaders = [host[0] for host in hosts]
        result["reached"] = _reached(rank, leaders, infos)
        exchange.publish("reached", result["reached"])
        reached = exchange.gather("reached", leaders, SLACK_S + len(leaders))
        listener.close()
        result["links"] = {}
        for number, pairs in enumerate(links.rounds(leaders)):
            for pair in pairs:
                if rank in pair and is_open(reached, pair[1], pair[0]):
                    result["links"][str(sum(pair) - rank)] = links.measure(meeting.store, rank, pair)
            exchange.publish(f"round-{number}", True)
            exchange.gather(f"round-{number}", leaders, links.LIMIT_S + SLACK_S)
    else:
        listener.close()
    if len(mine) > 1:
        result["shared_memory"] = links.shared_memory(meeting.store, rank, mine)
    return result


def is_open(reached: Mapping[int, Mapping[str, Any]], source: int, target: int) -> bool:
    """Whether `source` can connect to `target`. Of a pair the higher rank connects to the lower one, in ringdp too."""
    return reached.get(source, {}).get(str(target), {}).get("outcome") == "open"


def _reached(rank: int, leaders: Sequence[int], infos: dict[int, dict[str, Any]]) -> dict[str, Any]:
    others = [leader for leader in leaders if leader != rank]
    with ThreadPoolExecutor(_REACH_AT_A_TIME) as pool:
        found = pool.map(lambda other: reach(infos[other]["address"], infos[other]["port"]), others)
        return {str(other): outcome for other, outcome in zip(others, found, strict=True)}
