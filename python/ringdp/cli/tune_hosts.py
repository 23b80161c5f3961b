"""`ringdp tune --hosts -- torchrun ...`: measures the path between the hosts of a job, and says what to set for it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ringdp.text.units import counted

if TYPE_CHECKING:
    from ringdp.tools.hosts.meeting import Place
    from ringdp.tools.tune.between_hosts import Found

_LONGEST_S = 300.0  # beyond the measurement: groups are made, and each call has its own deadline
_FAILED_S = 3.0  # after a failure the store stays for ranks that notice later


def tune_hosts(options: argparse.Namespace) -> int:
    """In the launcher's place, or as a rank that a launcher has started; the status is in the command's help."""
    from ringdp.tools.hosts.launch import launch_of, run_ranks
    from ringdp.tools.hosts.meeting import Place
    from ringdp.tools.hosts.network import HostError

    try:
        if options.command:
            launch = launch_of(options.command)
            if launch.hosts == 1:
                raise ValueError("the command is for one host (--nnodes): ringdp tune without --hosts measures it")
            own = ["tune", "--hosts", f"--timeout={options.timeout:g}", f"--seconds={options.seconds:g}"]
            own += ["--json"] if options.json else []
            return run_ranks(replace(launch, ranks_per_host=1), own, options.timeout)
        place = Place.of(os.environ)
        if place is None:
            raise ValueError("no command: ringdp tune --hosts -- torchrun --nnodes 2 ... train.py, on every host")
        return _as_rank(options, place)
    except (HostError, OSError, ValueError) as error:
        print(f"ringdp tune: {error}", file=sys.stderr)
        return 2


def _as_rank(options: argparse.Namespace, place: Place) -> int:
    from ringdp.tools.hosts.meeting import agree, info_of, interface_of, meet
    from ringdp.tools.hosts.network import HostError
    from ringdp.tools.tune.between_hosts import hosts_in, measured
    from ringdp.tools.tune.session import TuneError

    def say(line: str) -> None:
        if place.rank == 0 and not options.json:
            print(line, flush=True)

    meeting = meet(place, options.timeout, info_of(place.rank, *interface_of(place)))
    try:
        hosts = hosts_in(meeting)
    except (HostError, TuneError) as error:
        print(f"ringdp tune: {error}", file=sys.stderr)
        return agree(meeting, 2 if isinstance(error, HostError) else 1, _LONGEST_S)
    say(f"{counted(len(hosts), 'host')}: " + ", ".join(f"{host['name']} ({host['address']})" for host in hosts))
    try:
        found = measured(meeting, options.seconds, say)
    except TuneError as error:
        print(f"ringdp tune: {error}", file=sys.stderr)
        with suppress(HostError):  # rank 0 may be the one that died
            agree(meeting, 1, _LONGEST_S, _FAILED_S)
        return 1
    if place.rank == 0 and found is not None:
        if options.json:
            print(json.dumps({"hosts": hosts, **found.as_dict()}), flush=True)
        else:
            _show_environment(found)
    return agree(meeting, 0, options.seconds + _LONGEST_S)


def _show_environment(found: Found) -> None:
    from ringdp.tools.tune.microbenchmark import SURE

    unsure = sum(not row.is_sure for row in found.measured)
    if unsure:
        left = f"left out: {counted(unsure, 'value')} of {len(found.measured)}, whose confidence is below {SURE:.0%}"
        print(f"{left}; more --seconds make them surer")
    words = " ".join(f"{variable}={value}" for variable, value in sorted(found.environment.items()))
    print(
        f"for this job, on all hosts: {words}" if words else "nothing to set: what is in force is as good", flush=True
    )
