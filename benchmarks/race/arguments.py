"""Command lines that several programs have in common: where the ranks of a job are, and numbers with a least value."""

from __future__ import annotations

import argparse


def add_places(parser: argparse.ArgumentParser, ranks: int = 2) -> None:
    """The options --ranks, --hosts and --rate, as race/job.py takes them."""
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--hosts", type=int, default=1, help="namespaces; more than 1 needs root")
    parser.add_argument("--rate", type=float, default=1.0, help="Gb/s of each host's link")


def check_places(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Ends the program with a sentence when ranks cannot be dealt out to hosts."""
    check_least(parser, found, ranks=1, hosts=1)
    if found.ranks % found.hosts:
        parser.error(f"{found.ranks} ranks do not divide evenly over {found.hosts} hosts")


def check_least(parser: argparse.ArgumentParser, found: argparse.Namespace, **least: float) -> None:
    """Ends the program with a sentence that names the first option below its least value."""
    for name, value in least.items():
        if getattr(found, name) < value:
            parser.error(f"--{name.replace('_', '-')} is {getattr(found, name)}, must be at least {value}")
