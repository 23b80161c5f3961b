"""The files that a program was asked to write: whether it will be able to, before it spends minutes on what goes in."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path


def add_outputs(parser: argparse.ArgumentParser, what: str, picture: str) -> None:
    """The options --json and --plot."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {what}")
    parser.add_argument("--plot", type=Path, metavar="PNG", help=f"draw {picture}")


def check_outputs(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Ends the program with a sentence when one of them cannot be written."""
    for name in ("json", "plot"):
        path = getattr(found, name)
        if path and not path.absolute().parent.is_dir():
            parser.error(f"--{name} {path}: there is no folder {path.parent}")
    if found.plot and not importlib.util.find_spec("matplotlib"):
        parser.error("--plot needs matplotlib (pip install -r benchmarks/requirements.txt)")
