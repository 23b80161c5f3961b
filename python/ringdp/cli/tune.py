"""`ringdp tune`: measures where one way of doing a collective takes over from another here, and remembers it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ringdp import _native
from ringdp.text.units import counted
from ringdp.tools.tune import cache


def add_command(commands: Any) -> None:
    """Adds `tune` to argparse's sub-commands."""
    command = commands.add_parser(
        "tune",
        help="measure this machine's thresholds, for this user's groups on this host",
        epilog="example: ringdp tune --ranks 2 --seconds 8",
    )
    command.add_argument("-n", "--ranks", type=int, metavar="N", help="local processes (default: 2, then more)")
    command.add_argument("--seconds", type=float, default=8.0, metavar="S", help="for measuring, in all (default 8)")
    command.add_argument(
        "--print", action="store_true", dest="only_print", help="measure nothing: print what is in force"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """0: done; 1: it could not be measured or written; 2: it cannot run here."""
    if (options.ranks is not None and options.ranks < 2) or not 0 < options.seconds <= 3600:
        values = f"-n {options.ranks} --seconds {options.seconds}"
        print(f"ringdp tune: {values}: N must be at least 2, S above 0 and at most 3600", file=sys.stderr)
        return 2
    try:
        core = _native.load()
        core.check_environment()
    except (ImportError, ValueError) as error:
        print(f"ringdp tune: {error}", file=sys.stderr)
        return 2
    if options.only_print:
        print(json.dumps(report(core)) if options.json else render(report(core)))
        return 0
    return _tune(options, core)


def report(core: Any) -> dict[str, Any]:
    """What is in force for new groups of this user here, and where it comes from."""
    file = cache.path()
    rows = [row for row in cache.in_force(core.setting_table()) if row["field"] in _fields(core)]
    return {
        "file": None if file is None else str(file),
        "exists": file is not None and file.exists(),
        "host": cache.host(),
        "thresholds": {row["field"]: {"value": int(row["value"]), "source": row["source"]} for row in rows},
    }


def _fields(core: Any) -> set[str]:
    """Fields that are measured, and the thresholds that need several hosts."""
    return {*cache.FIELDS, *core.threshold_fields()}


def render(found: dict[str, Any]) -> str:
    """The report as text for a person."""
    file = found["file"] or f"none ({cache.VARIABLE}=off)"
    lines = [f"measured here    {file}{'' if found['exists'] or not found['file'] else ' (does not exist)'}"]
    lines += [f"  {field:<24} {row['value']:>10}  {row['source']}" for field, row in found["thresholds"].items()]
    return "\n".join(lines)


_SURE = 0.8  # a value with less confidence is not stored
_BUSY_LOAD, _BUSY_SPREAD = 0.5, 0.5  # processes per core before the measurement; of rounds


@dataclass(frozen=True)
class Measured:
    """What one benchmark has found; `sure`: confidence()."""

    field: str
    value: int
    ranks: int
    rounds: int
    sure: float
    at_the_edge: bool
    spread: float

    @property
    def stored(self) -> bool:
        """Whether it is worth relying on."""
        return self.sure >= _SURE

    def __str__(self) -> str:
        found = f"{self.field:<24} {self.value:>8}  {counted(self.ranks, 'rank')}, {counted(self.rounds, 'round')}"
        edge = ", at the edge of what was tried: the best may lie beyond" if self.at_the_edge else ""
        return f"{found}, {self.sure:.0%} sure{edge}{'' if self.stored else ': not stored'}"


def _busy(load: float, found: Sequence[Measured]) -> str:
    """Why these measurements are to be doubted; '' for no reason."""
    cores, apart = os.cpu_count() or 1, median([row.spread for row in found] or [0.0])
    reasons = [f"a load of {load:.1f} on {counted(cores, 'core')} before the measurement"] * (load > _BUSY_LOAD * cores)
    reasons += [f"rounds that differ by {apart:.0%}"] * (apart > _BUSY_SPREAD)
    return " and ".join(reasons)


def _tune(options: argparse.Namespace, core: Any) -> int:
    from ringdp.tools.tune.microbenchmark import at_the_edge, confidence, decide, microbenchmarks, spread
    from ringdp.tools.tune.rank import Assignment
    from ringdp.tools.tune.session import TuneError, measured

    if cache.path() is None:
        print(f"ringdp tune: {cache.VARIABLE}=off: unset it, or name a file there", file=sys.stderr)
        return 2
    defaults = {row["field"]: int(row["default"]) for row in core.setting_table() if row["field"] in cache.FIELDS}
    several = max(4, min(os.cpu_count() or 1, 8))
    sizes = (options.ranks,) if options.ranks else (2, several)
    batches = [microbenchmarks(ranks, defaults, spin=ranks == sizes[0]) for ranks in sizes]
    seconds = options.seconds / sum(map(len, batches))
    load = os.getloadavg()[0]
    found: list[Measured] = []
    try:
        for ranks, batch in zip(sizes, batches, strict=True):
            for benchmark, times in measured(Assignment(ranks, tuple(batch), seconds)):
                value, rounds = decide(benchmark, times), min(map(len, times.values()))
                judged = confidence(benchmark, times), at_the_edge(benchmark, value), spread(times)
                found.append(Measured(benchmark.field, value, ranks, rounds, *judged))
                if not options.json:
                    print(found[-1], flush=True)
        values = {row.field: row.value for row in found if row.stored}
        file = cache.save(values)
    except (TuneError, OSError) as error:
        print(f"ringdp tune: {error}", file=sys.stderr)
        return 1
    busy = _busy(load, found)
    if options.json:
        rows = {row.field: {**asdict(row), "stored": row.stored} for row in found}
        print(json.dumps({**report(core), "measured": rows, "busy": busy}))
        return 0
    if busy:
        print(f"this machine is busy: {busy}; run it again when nothing else runs")
    left = len(found) - len(values)
    if left:
        print(
            f"not stored: {counted(left, 'value')} of {len(found)}, whose confidence is below {_SURE:.0%}; "
            "more --seconds make them surer"
        )
    if values:
        print(f"written to {file}")
    return 0
