"""`ringdp tune`: measures where one way of doing a collective takes over from another here, and remembers it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from ringdp import _native
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


def _tune(options: argparse.Namespace, core: Any) -> int:
    from ringdp.tools.tune.microbenchmark import decide, microbenchmarks
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
    values: dict[str, int] = {}
    try:
        for ranks, batch in zip(sizes, batches, strict=True):
            for benchmark, times in measured(Assignment(ranks, tuple(batch), seconds)):
                values[benchmark.field] = decide(benchmark, times)
                if not options.json:
                    rounds = min(map(len, times.values()))
                    print(
                        f"{benchmark.field:<24} {values[benchmark.field]:>8}  {ranks} ranks, {rounds} rounds",
                        flush=True,
                    )
        file = cache.save(values)
    except (TuneError, OSError) as error:
        print(f"ringdp tune: {error}", file=sys.stderr)
        return 1
    print(json.dumps({**report(core), "measured": values}) if options.json else f"written to {file}")
    return 0
