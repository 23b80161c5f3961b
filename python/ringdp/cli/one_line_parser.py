"""Argument parsing whose errors are one line: what is wrong, and the usage."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn


class OneLineParser(argparse.ArgumentParser):
    """Its sub-commands' parsers are of this class too."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """None are left over: the parser that does not know one says so, with its own usage."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Ends with status 2."""
        usage = " ".join(self.format_usage().split())
        self.exit(2, f"{self.prog}: {message}; {usage}\n")
