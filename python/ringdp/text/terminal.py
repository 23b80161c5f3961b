"""Styled lines for standard output, a terminal or not. Text is never interpreted as rich's markup."""

from __future__ import annotations

import importlib.util
import sys

Piece = tuple[str, str]  # text, and its style in rich's words; "" for none


def in_terminal() -> bool:
    """Whether standard output is a terminal and rich is installed; else plain lines are printed."""
    return sys.stdout.isatty() and importlib.util.find_spec("rich") is not None


def print_styled(*pieces: Piece) -> None:
    """One line: in colour in a terminal, plain and without spaces at its end elsewhere."""
    if not in_terminal():
        print("".join(text for text, _ in pieces).rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False, soft_wrap=True).print(Text.assemble(*pieces))
