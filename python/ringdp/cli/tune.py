"""`ringdp tune`: measures where one way of doing a collective takes over from another here, and remembers it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from ringdp import _native
from ringdp.cli.arguments import positive
from ringdp.cli.tune_hosts import tune_hosts
from ringdp.text.units import counted
from ringdp.tools.tune import cache
from ringdp.tools.tune.path import FIELDS

_SECONDS, _SECONDS_OF_HOSTS, _TIMEOUT_S = 8.0, 30.0, 30.0
_EXAMPLE = """examples:
  ringdp tune --ranks 2 --seconds 8
  ringdp tune --hosts -- torchrun --nnodes 3 --nproc-per-node 8 --node-rank 0 --master-addr node-a train.py

With --hosts it is started on every host, as you would start the job there. The script is not run: only the launcher's
options are read, and one rank on each host measures the path between them. Rank 0 prints the variables to set for the
job; nothing is written, because another job may have other hosts.
status: 0 where it was measured, 1 where it could not be (a host or a rank is missing), 2 where it cannot run here."""


def add_command(commands: Any) -> None:
    """Adds `tune` to argparse's sub-commands."""
    command = commands.add_parser(
        "tune",
        usage="ringdp tune [options] [--hosts -- torchrun ...]",
        help="measure this machine's thresholds, for this user's groups on this host; or the path between hosts",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("-n", "--ranks", type=int, metavar="N", help="local processes (default: 2, then more)")
    command.add_argument(
        "--hosts", action="store_true", help="measure what depends on the network between the hosts of a job"
    )
    command.add_argument(
        "--timeout", type=positive(float, 3600.0), metavar="S", help="with --hosts: for all hosts to come (default 30)"
    )
    command.add_argument(
        "--seconds", type=float, metavar="S", help="for measuring, in all (default 8, with --hosts 30)"
    )
    command.add_argument(
        "--print", action="store_true", dest="only_print", help="measure nothing: print what is in force"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=run, runs_command=True)


def run(options: argparse.Namespace) -> int:
    """See the status in the command's help."""
    if options.seconds is None:
        options.seconds = _SECONDS_OF_HOSTS if options.hosts else _SECONDS
    wrong = _what_is_wrong(options)
    if wrong:
        print(f"ringdp tune: {wrong}", file=sys.stderr)
        return 2
    options.timeout = options.timeout or _TIMEOUT_S
    try:
        core = _native.load()
        core.check_environment()
    except (ImportError, ValueError) as error:
        print(f"ringdp tune: {error}", file=sys.stderr)
        return 2
    if options.only_print:
        found = {"thresholds": _in_force(core, FIELDS)} if options.hosts else report(core)
        print(json.dumps(found) if options.json else render(found))
        return 0
    return tune_hosts(options) if options.hosts else _tune(options, core)


def _what_is_wrong(options: argparse.Namespace) -> str:
    """With these options together; '' for nothing."""
    if (options.ranks is not None and options.ranks < 2) or not 0 < options.seconds <= 3600:
        values = f"-n {options.ranks} --seconds {options.seconds}"
        return f"{values}: N must be at least 2, S above 0 and at most 3600"
    if options.command and (options.only_print or not options.hosts):
        without = "--print" if options.only_print else "tune without --hosts"
        return f"{without} runs nothing: leave out -- {' '.join(options.command)}"
    if options.hosts and options.ranks is not None:
        return f"-n {options.ranks} counts processes of one host, and --hosts takes one rank of each: leave out one"
    if options.timeout is not None and not options.hosts:
        return f"--timeout {options.timeout:g} is for --hosts: leave it out"
    return ""


def report(core: Any) -> dict[str, Any]:
    """What is in force for new groups of this user here, and where it comes from."""
    file = cache.path()
    return {
        "file": None if file is None else str(file),
        "exists": file is not None and file.exists(),
        "host": cache.host(),
        "thresholds": _in_force(core, {*cache.FIELDS, *core.threshold_fields()}),  # also those that need several hosts
    }


def _in_force(core: Any, fields: Collection[str]) -> dict[str, dict[str, Any]]:
    rows = [row for row in cache.in_force(core.setting_table()) if row["field"] in fields]
    return {row["field"]: {"value": int(row["value"]), "source": row["source"]} for row in rows}


def render(found: dict[str, Any]) -> str:
    """The report as text for a person."""
    lines = []
    if "file" in found:
        file = found["file"] or f"none ({cache.VARIABLE}=off)"
        lines = [f"measured here    {file}{'' if found['exists'] or not found['file'] else ' (does not exist)'}"]
    lines += [f"  {field:<24} {row['value']:>10}  {row['source']}" for field, row in found["thresholds"].items()]
    return "\n".join(lines)


_BUSY_LOAD, _BUSY_SPREAD = 0.5, 0.5  # processes per core before the measurement; of rounds


def _busy(load: float, spreads: Sequence[float]) -> str:
    """Why these measurements are to be doubted; '' for no reason."""
    cores, apart = os.cpu_count() or 1, median(spreads or [0.0])
    reasons = [f"a load of {load:.1f} on {counted(cores, 'core')} before the measurement"] * (load > _BUSY_LOAD * cores)
    reasons += [f"rounds that differ by {apart:.0%}"] * (apart > _BUSY_SPREAD)
    return " and ".join(reasons)


def _tune(options: argparse.Namespace, core: Any) -> int:
    from ringdp.tools.tune.microbenchmark import SURE, Measured, judge, microbenchmarks
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
                found.append(judge(benchmark, times))
                if not options.json:
                    print(f"{found[-1]}{'' if found[-1].is_sure else ': not stored'}", flush=True)
        values = {row.field: row.value for row in found if row.is_sure}
        file = cache.save(values)
    except (TuneError, OSError) as error:
        print(f"ringdp tune: {error}", file=sys.stderr)
        return 1
    busy = _busy(load, [row.spread for row in found])
    if options.json:
        rows = {row.field: {**asdict(row), "stored": row.is_sure} for row in found}
        print(json.dumps({**report(core), "measured": rows, "busy": busy}))
        return 0
    if busy:
        print(f"this machine is busy: {busy}; run it again when nothing else runs")
    left = len(found) - len(values)
    if left:
        print(
            f"not stored: {counted(left, 'value')} of {len(found)}, whose confidence is below {SURE:.0%}; "
            "more --seconds make them surer"
        )
    if values:
        print(f"written to {file}")
    return 0
