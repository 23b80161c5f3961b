"""`ringdp <command>`: parses the command line and runs one command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import ringdp
from ringdp.cli import info, ring, selftest, tune


def parser() -> argparse.ArgumentParser:
    """The whole command line; every command sets `run`."""
    top = argparse.ArgumentParser(prog="ringdp", description="data-parallel training you can trust")
    top.add_argument("--version", action="version", version=f"ringdp {ringdp.__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="command")
    info.add_command(commands)
    ring.add_command(commands)
    selftest.add_command(commands)
    tune.add_command(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status (2 from argparse when the command line is wrong)."""
    options = parser().parse_args(arguments)
    return options.run(options)
