"""`ringdp <command>`: parses the command line and runs one command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ringdp
from ringdp.cli import audit, blame, check_hosts, doctor, info, plan, report, ring, run, selftest, trace, tune
from ringdp.cli.arguments import OneLineParser

# In the order of the help.
COMMANDS = (info, run, plan, ring, check_hosts, report, audit, doctor, trace, blame, selftest, tune)
_SIGPIPE_STATUS = 141  # as a shell has it of a program that SIGPIPE ended


def parser() -> argparse.ArgumentParser:
    """The whole command line; every command sets `run`."""
    top = OneLineParser(
        prog="ringdp",
        description="data-parallel training you can trust",
        epilog="example: ringdp doctor -- torchrun --nproc-per-node 2 train.py",
    )
    top.add_argument("--version", action="version", version=f"ringdp {ringdp.__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="command")
    for command in COMMANDS:
        command.add_command(commands)
    return top


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options. What follows a `--` is a command to run: a list in `command`, not looked at. `run` reads its own.

    argparse ends the process with status 2 when the command line is wrong.
    """
    given = list(arguments)
    if given[:1] == ["run"]:  # a -- may be the script's
        return argparse.Namespace(run=run.run, arguments=given[1:])
    own, command = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    top = parser()
    options = top.parse_args(own)
    if command and not getattr(options, "runs_command", False):
        top.error(f"this command runs nothing: leave out -- {' '.join(command)}")
    options.command = command
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        with _ended_by_signals():
            status = options.run(options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader has seen enough (| head). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SIGPIPE_STATUS


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as an exception does, so that it ends its ranks and removes its folders.

    One that is ignored (nohup) stays so.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    taken = {number: handler for number, handler in before.items() if handler == signal.SIG_DFL}
    for number in taken:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def _end(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)
