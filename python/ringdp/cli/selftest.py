"""`ringdp selftest`: every op, element type and reduce op over every transport, against a serial oracle, to the bit."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from ringdp import _native

_TRANSPORTS = ("shm", "tcp")
_STALL = 2.0  # times --timeout: the backend's own deadline comes first and says more


def add_command(commands: Any) -> None:
    """Adds `selftest` to argparse's sub-commands."""
    command = commands.add_parser(
        "selftest",
        help="check every op, dtype and transport on this machine, bit for bit",
        epilog="example: ringdp selftest --ranks 4 --transport tcp",
    )
    command.add_argument("-n", "--ranks", type=int, default=2, metavar="N", help="local processes (default 2)")
    command.add_argument("--transport", type=_names(_known_transports), default=list(_TRANSPORTS), help="shm,tcp")
    command.add_argument("--ops", type=_names(_known_ops), help="e.g. all_reduce,gather,send/recv (default: all)")
    command.add_argument("--timeout", type=float, default=30.0, metavar="S", help="deadline of one call (default 30)")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=run)


def _known_transports() -> tuple[str, ...]:
    return _TRANSPORTS


def _known_ops() -> tuple[str, ...]:
    from ringdp.selftest.cases import FAMILIES

    return FAMILIES


def _names(known: Callable[[], tuple[str, ...]]) -> Callable[[str], list[str]]:
    """A comma-separated list. What is known is asked for late: the ops need torch, the command line does not."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known():
                raise argparse.ArgumentTypeError(f"invalid value '{name}' (expected one of: {', '.join(known())})")
        return names

    return parse


def run(options: argparse.Namespace) -> int:
    """0: all good; 1: something is wrong; 2: it cannot run here."""
    if options.ranks < 1 or options.timeout <= 0:
        print(f"ringdp selftest: -n {options.ranks} --timeout {options.timeout}: both must be above 0", file=sys.stderr)
        return 2
    try:
        _native.load()
    except ImportError as error:
        print(f"ringdp selftest: {error}", file=sys.stderr)
        return 2
    return check(options)


def check(options: argparse.Namespace, **replaced: Any) -> int:
    """Runs and prints. `replaced`: arguments of Session for the command's own tests."""
    from ringdp.selftest.cases import FAMILIES, cases_of
    from ringdp.selftest.display import display_for, summary
    from ringdp.selftest.rank import Assignment
    from ringdp.selftest.results import Results
    from ringdp.selftest.session import Session

    start = time.monotonic()
    cases = cases_of(options.ops or FAMILIES, options.ranks)
    transports = tuple(dict.fromkeys(options.transport))
    assignment = Assignment(options.ranks, transports, tuple(cases), "", options.timeout)
    tally = Results(options.ranks, transports, cases)
    session = Session(assignment, _STALL * options.timeout, **replaced)
    with session, display_for(tally, options.json) as shown:
        for event in session.events():
            tally.add(event)
            shown.show(event)
    seconds = time.monotonic() - start
    print(json.dumps({**tally.report(), "seconds": seconds}) if options.json else summary(tally, seconds))
    return 0 if tally.good else 1
