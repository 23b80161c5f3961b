"""`ringdp check-hosts -- torchrun ...`: before a job runs on several machines, whether it can, and how fast."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from ringdp import _native
from ringdp.cli.arguments import positive

_TIMEOUT_S = 30.0
_EXAMPLE = """example, on every host, as you would start the job there:
  ringdp check-hosts -- torchrun --nnodes 2 --nproc-per-node 8 --node-rank 0 --master-addr node-a train.py

The script is not run: only the launcher's options are read, and ranks that check hosts come in its place. Without
a command it is a rank itself, where a launcher has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
Looked at: versions and settings, the interface that ringdp chooses, ports between hosts in both directions,
clocks, round trip and bandwidth of every pair over ringdp's own links, shared memory on each host.
status: 0 where nothing was found, 1 where something was, 2 where this host could not take part."""


def add_command(commands: Any) -> None:
    """Adds `check-hosts` to argparse's sub-commands."""
    command = commands.add_parser(
        "check-hosts",
        usage="ringdp check-hosts [options] [-- torchrun ...]",
        help="before a job on several machines: versions, ports, clocks, bandwidth of every pair",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--timeout", type=positive(float, 3600.0), default=_TIMEOUT_S, metavar="S", help="for all hosts to come (30)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object, on rank 0")
    command.set_defaults(run=run, runs_command=True)


def run(options: argparse.Namespace) -> int:
    """See the status in the command's help."""
    from ringdp.tools.hosts.network import HostError

    try:
        _native.load().check_environment()
        if options.command:
            from ringdp.tools.hosts.launch import launch_of, run_ranks

            own = ["check-hosts", "--timeout", f"{options.timeout:g}", *(["--json"] if options.json else [])]
            return run_ranks(launch_of(options.command), own, options.timeout)
        return _as_rank(options)
    except (HostError, ImportError, OSError, ValueError) as error:
        print(f"ringdp check-hosts: {error}", file=sys.stderr)
        return 2


def _as_rank(options: argparse.Namespace) -> int:
    from ringdp.tools.check_hosts.rank import longest_s, take_part
    from ringdp.tools.hosts.meeting import Place, agree

    place = Place.of(os.environ)
    if place is None:
        raise ValueError("no command: ringdp check-hosts -- torchrun --nnodes 2 ... train.py, on every host")
    meeting, results = take_part(place, options.timeout)
    status = 0
    if results is not None:
        from ringdp.tools.check_hosts.report import Report

        report = Report(results)
        status = report.status
        if options.json:
            print(json.dumps({**report.as_dict(), "status": status}), flush=True)
        else:
            report.show()
            sys.stdout.flush()
    return agree(meeting, status, options.timeout + longest_s(place.world))
