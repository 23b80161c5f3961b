"""Hosts of a benchmark: network namespaces of this machine whose links are shaped to a rate by token buckets.

Both directions of every host's link are shaped: from the host at its own end, towards it at the switch's. The networks
are those of the tests over several hosts (ringdp.tools.netns), so there is one description of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringdp.tools.netns.far import FarNetwork, why_not_far
from ringdp.tools.netns.namespaces import MAX_HOSTS, Network, ip, why_impossible

BURST = "256kb"  # the bucket's size: far below the tensors that are measured


@dataclass(frozen=True)
class Distance:
    """Round trip between hosts, share of packets that is lost, and settings of their kernels (sysctl).

    grows: hosts are close to each other until Hosts.grow() is called.
    """

    rtt_ms: float
    loss: float = 0.0
    settings: Mapping[str, str] = field(default_factory=dict)
    grows: bool = False


class Hosts:
    """`count` hosts with links of `gigabits` each way (0: as fast as the kernel is). Use as a context.

    distance: hosts are so far apart, at a rate that does not change any more.
    """

    def __init__(self, count: int, gigabits: float, distance: Distance | None = None) -> None:
        if reason := why_not_far() if distance else why_impossible():
            raise ValueError(reason)
        if not 2 <= count <= MAX_HOSTS:
            raise ValueError(f"{count} hosts: there can be 2 to {MAX_HOSTS}")
        self.gigabits, self._near = gigabits, Network(count)
        self._distance = distance or Distance(0.0)
        self._network: Network | FarNetwork = self._near
        if distance:
            rtt_ms = 0.0 if distance.grows else distance.rtt_ms
            self._network = FarNetwork(count, rtt_ms, gigabits * 1000, distance.loss)

    def __enter__(self) -> Hosts:
        self._network.__enter__()
        if self._network is self._near:
            self.shape(self.gigabits)
        for host in self._network.hosts:
            for name, value in self._distance.settings.items():
                ip("netns", "exec", host.namespace, "sysctl", "-q", "-w", f"{name}={value}")
        return self

    def __exit__(self, *_: object) -> None:
        self._network.__exit__()

    @property
    def addresses(self) -> list[str]:
        """By host, on eth0."""
        return [host.address for host in self._network.hosts]

    def command(self, host: int, command: list[str]) -> list[str]:
        """`command`, to be run on that host."""
        return self._network.hosts[host].command(command)

    def grow(self) -> None:
        """The hosts of a distance that grows are as far apart as it says from now on."""
        assert isinstance(self._network, FarNetwork)
        self._network.set_rtt(self._distance.rtt_ms)

    def cut(self, host: int) -> None:
        """Packets from and to that host vanish from now on."""
        self._network.cut(self._network.hosts[host], off=True)

    def shape(self, gigabits: float) -> None:
        """Sets the rate of every link from now on."""
        self.gigabits = gigabits
        if not gigabits:
            return
        bucket = ["root", "tbf", "rate", f"{gigabits * 1000:.0f}mbit", "burst", BURST, "latency", "50ms"]
        for host in self._network.hosts:
            for namespace, device in self._near.ends(host):
                ip("netns", "exec", namespace, "tc", "qdisc", "replace", "dev", device, *bucket)
