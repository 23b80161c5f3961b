"""What the results of all ranks say: findings, and the tables of hosts and pairs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, groupby
from statistics import median
from typing import Any

import ringdp
from ringdp.text.table import print_table
from ringdp.text.units import counted, names, ranks_by_value, scaled, seconds
from ringdp.tools.attach.finding import Finding, problems, show_findings
from ringdp.tools.check_hosts.rank import Results

_SLOW = 0.5  # of what is usual
_CLOCK_S = 1.0
_MOST_ROWS = 30
_MAY_DIFFER = ("socket_ifname", "late_ms", "unreachable_ms", "spin_us", "tls_cert", "tls_key", "tls_ca")
_PORTS = "ringdp binds to any free port (net.ipv4.ip_local_port_range) while groups are made"


class Report:
    """Tables and findings of one check."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.hosts = results.hosts
        self.infos = results.infos
        self.leaders = [host[0] for host in self.hosts]
        self.reached = {leader: results.results.get(leader, {}).get("reached", {}) for leader in self.leaders}
        self.links = {leader: results.results.get(leader, {}).get("links", {}) for leader in self.leaders}
        self.rates = self._rates()
        self.findings = [*self._missing(), *self._differences(), *self._addresses(), *self._ports(), *self._slow()]
        self.findings += [*self._errors(), *self._memory(), *self._clocks()]

    @property
    def status(self) -> int:
        """0: no problem, 1: some."""
        return int(bool(problems(self.findings)))

    def name(self, leader: int) -> str:
        """Of a host: its name, or its address where hosts share a name."""
        name = self.infos[leader]["name"]
        alone = sum(self.infos[other]["name"] == name for other in self.leaders) == 1
        return name if alone else self.infos[leader]["address"]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        hosts = []
        for host in self.hosts:
            fields = ("name", "address", "interface", "why", "megabits", "interfaces", "versions", "settings")
            shared = self.results.results.get(host[0], {}).get("shared_memory")
            own = {field: self.infos[host[0]][field] for field in fields}
            hosts.append({"ranks": host, **own, "clock": self._clock(host[0]), "shared_memory": shared})
        pairs = [
            {"from": a, "to": b, "reached": self.reached[a].get(str(b)), "link": self.links[a].get(str(b))}
            for a in self.leaders
            for b in self.leaders
            if a != b
        ]
        findings = [finding.as_dict() for finding in self.findings]
        return {"world": self.results.world, "hosts": hosts, "pairs": pairs, "findings": findings}

    def show(self) -> None:
        """Tables, findings, and one line as the verdict."""
        rows = []
        for host in self.hosts:
            info = self.infos[host[0]]
            where = f"{info['address']} ({info['interface']})"
            rows.append((_cut(self.name(host[0])), _ranges(host), _cut(where, 30), self._shown_clock(host[0])))
        print_table("hosts", ("host", "ranks", "address", "clock"), rows)
        pairs = self._pair_rows()
        if pairs:
            shown = min(len(pairs), _MOST_ROWS)
            title = "pairs of hosts" if shown == len(pairs) else f"the {shown} slowest of {len(pairs)} pairs of hosts"
            print_table(title, ("from", "to", "port", "round trip", "rate"), pairs[:_MOST_ROWS])
        show_findings(self.findings, ())
        found = len(problems(self.findings))
        verdict = counted(found, "problem") if found else "no problems"
        print(f"{verdict}: {counted(len(self.hosts), 'host')}, {counted(len(self.infos), 'rank')}")

    def _pair_rows(self) -> list[tuple[str, ...]]:
        rows = []
        for a in self.leaders:
            for b in self.leaders:
                if a != b:
                    link, rate = self.links[a].get(str(b), {}), self.rates.get((a, b), 0.0)
                    trip = seconds(link["round_trip_s"]) if "round_trip_s" in link else "-"
                    outcome = self.reached[a].get(str(b), {}).get("outcome", "not tried")
                    shown = scaled(rate, "b/s") if rate else "-"
                    rows.append((rate, (_cut(self.name(a)), _cut(self.name(b)), outcome, trip, shown)))
        if len(rows) > _MOST_ROWS:
            rows.sort()
        return [row for _, row in rows]

    def _rates(self) -> dict[tuple[int, int], float]:
        """Bits per second by (from, to)."""
        return {
            (a, int(b)): link["bits_per_s"]
            for a, links in self.links.items()
            for b, link in links.items()
            if "bits_per_s" in link
        }

    def _clock(self, leader: int) -> dict[str, float] | None:
        """How far a host's clock is ahead of rank 0's, as seen from there, or from here."""
        first = self.leaders[0]
        if leader == first:
            return {"ahead_s": 0.0, "error_s": 0.0}
        for source, target, sign in ((first, leader, 1), (leader, first, -1)):
            seen = self.reached[source].get(str(target), {})
            if "clock_s" in seen:
                return {"ahead_s": sign * seen["clock_s"], "error_s": seen["error_s"]}
        return None

    def _shown_clock(self, leader: int) -> str:
        clock = self._clock(leader)
        if clock is None:
            return "-"
        sign = "-" if clock["ahead_s"] < 0 else "+"
        small = abs(clock["ahead_s"]) <= clock["error_s"]
        return "same" if small else sign + seconds(abs(clock["ahead_s"]))

    def _missing(self) -> Iterator[Finding]:
        absent = sorted(set(range(self.results.world)) - set(self.infos))
        if absent:
            yield Finding(
                "missing",
                f"{names(absent)} did not come within {self.results.timeout_s:g} s",
                "a job waits for all of its ranks",
                "start the command on every host at the same time (--timeout waits longer); if it runs there, its own "
                "output says why it cannot reach this host",
                tuple(absent),
            )
        silent = sorted(set(self.infos) - set(self.results.results))
        if silent:
            yield Finding(
                "silent",
                f"{names(silent)} came, and did not get to the end of the check",
                "a rank that stops answering stops a job",
                "look at the output of that rank",
                tuple(silent),
            )

    def _differences(self) -> Iterator[Finding]:
        for what in ("ringdp", "torch", "Python"):
            yield from self._difference(what, {rank: info["versions"][what] for rank, info in self.infos.items()})
        variables = sorted({name for info in self.infos.values() for name in info["settings"]})
        own = {*_MAY_DIFFER, *ringdp._C.threshold_fields()}  # thresholds are rank 0's
        compared = {row["variable"] for row in ringdp._C.setting_table() if row["field"] and row["field"] not in own}
        for name in variables:
            if name in compared:
                values = {rank: info["settings"].get(name, "its default") for rank, info in self.infos.items()}
                yield from self._difference(name, values)

    def _difference(self, what: str, values: dict[int, str]) -> Iterator[Finding]:
        by_value = ranks_by_value(values)
        if len(by_value) > 1:
            listed = "; ".join(f"{value} on {names(ranks)}" for value, ranks in by_value.items())
            setting = what.startswith("RINGDP_")
            yield Finding(
                "settings" if setting else "versions",
                f"{what} differs: {listed}",
                "ranks refuse to make a group" if setting else "bits, messages between ranks or pickles may differ",
                "give all ranks the same value" if setting else "install the same release on all hosts",
                severity="note" if what == "Python" else "problem",
            )

    def _addresses(self) -> Iterator[Finding]:
        for a, b in combinations(self.leaders, 2):
            one, other = self.infos[a], self.infos[b]
            if one["address"] == other["address"]:
                yield Finding(
                    "address",
                    f"{one['name']} and {other['name']} both chose {one['address']} ({one['interface']})",
                    "each would connect to itself",
                    "name the interface of the network that they share: RINGDP_SOCKET_IFNAME",
                    (a, b),
                )
        for leader in self.leaders:
            info = self.infos[leader]
            fastest = max(info["interfaces"], key=lambda found: found["megabits"])
            if info["megabits"] and fastest["megabits"] > info["megabits"] and len(self.hosts) > 1:
                yield Finding(
                    "interface",
                    f"{self.name(leader)} uses {info['interface']} ({info['megabits']} Mb/s: {info['why']}) and has "
                    f"{fastest['name']} ({fastest['megabits']} Mb/s)",
                    "all bytes between hosts take the one interface",
                    f"if all hosts are on it: RINGDP_SOCKET_IFNAME={fastest['name']}",
                    (leader,),
                    "note",
                )

    def _ports(self) -> Iterator[Finding]:
        for low, high in combinations(self.leaders, 2):
            for source, target in ((high, low), (low, high)):
                seen = self.reached[source].get(str(target))
                if seen is None or seen["outcome"] == "open":
                    continue
                needed = source == high
                where = f"{self.infos[target]['address']} port {self.infos[target]['port']}"
                how = {"no answer": "packets are dropped", "refused": "connections are refused"}
                yield Finding(
                    "port",
                    f"{self.name(source)} cannot connect to {self.name(target)} at {where}: {seen['outcome']} "
                    f"({how.get(seen['outcome'], 'see the error')})",
                    "no group of their ranks can be made"
                    if needed
                    else "none for ringdp, whose higher rank connects to the lower one; other libraries may need it",
                    f"let {self.name(target)} accept TCP from {self.name(source)}: {_PORTS}",
                    (source, target),
                    "problem" if needed else "note",
                )

    def _errors(self) -> Iterator[Finding]:
        for a, b in combinations(self.leaders, 2):
            for source, target in ((a, b), (b, a)):
                error = self.links[source].get(str(target), {}).get("error")
                if error:
                    yield Finding(
                        "link",
                        f"{self.name(source)} and {self.name(target)}: {error}",
                        "a job of these hosts would end with this error",
                        "the error says what differs or was lost; docs/errors.md explains its kind",
                        (source, target),
                    )
                    break  # the other side says the same from its end

    def _slow(self) -> Iterator[Finding]:
        """A host of whose pairs even the best is slow has a slow cable; else a way between two hosts is slow."""
        explained: set[tuple[int, int]] = set()
        for end, verb in ((0, "sends"), (1, "receives")):
            best = {
                host: max((r for p, r in self.rates.items() if p[end] == host), default=0.0) for host in self.leaders
            }
            for host in self.leaders if len(self.leaders) > 2 else ():
                usual = median(rate for other, rate in best.items() if other != host)
                if 0 < best[host] < _SLOW * usual:
                    pairs = [pair for pair in self.rates if pair[end] == host]
                    explained.update(pairs)
                    yield self._slow_finding(f"what {self.name(host)} {verb}", best[host], usual, (host,))
        usual = median(self.rates.values()) if self.rates else 0.0
        for (a, b), rate in sorted(self.rates.items()):
            compared = self.rates.get((b, a), 0.0) if len(self.leaders) == 2 else usual
            if (a, b) not in explained and rate < _SLOW * compared:
                yield self._slow_finding(f"what {self.name(a)} sends to {self.name(b)}", rate, compared, (a, b))

    def _slow_finding(self, what: str, rate: float, usual: float, ranks: tuple[int, ...]) -> Finding:
        return Finding(
            "slow link",
            f"{what} arrives at {scaled(rate, 'b/s')}, where {scaled(usual, 'b/s')} is usual here",
            "every step waits for the slowest link",
            "look at that host's cable, switch port and duplex (ethtool), and at what else uses it",
            ranks,
            numbers={"bits_per_s": rate, "usual_bits_per_s": usual},
        )

    def _memory(self) -> Iterator[Finding]:
        for host in self.hosts:
            shared = self.results.results.get(host[0], {}).get("shared_memory")
            if shared and not shared["shm"]:
                yield Finding(
                    "shared memory",
                    f"{names(host)} of {self.name(host[0])} share no memory: {shared['why']}",
                    "they fall back to TCP, which takes several times as long",
                    "docs/multi-host.md says what containers must allow",
                    tuple(host),
                )

    def _clocks(self) -> Iterator[Finding]:
        for leader in self.leaders:
            clock = self._clock(leader)
            if clock is not None and abs(clock["ahead_s"]) > _CLOCK_S:
                apart = f"{seconds(abs(clock['ahead_s']))} {'ahead of' if clock['ahead_s'] > 0 else 'behind'}"
                yield Finding(
                    "clock",
                    f"the clock of {self.name(leader)} is {apart} that of {self.name(self.leaders[0])}",
                    "ringdp compares no clocks, but logs and certificates do",
                    "run chrony or another NTP client on all hosts",
                    (leader,),
                    "note",
                )


def _cut(text: str, most: int = 20) -> str:
    return text if len(text) <= most else text[: most - 2] + ".."


def _ranges(ranks: list[int]) -> str:
    """0-3, 8"""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
