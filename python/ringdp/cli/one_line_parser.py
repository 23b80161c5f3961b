"""Argument parsing whose errors are one line: what is wrong, and the usage."""

from __future__ import annotations

import argparse
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """Its sub-commands' parsers are of this class too."""

    def error(self, message: str) -> NoReturn:
        """Ends with status 2."""
        usage = " ".join(self.format_usage().split())
        self.exit(2, f"{self.prog}: {message}; {usage}\n")
