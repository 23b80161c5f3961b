"""Docstrings of this repository as reStructuredText, for the API reference.

They are plain text with `code` in single backquotes, code blocks of indented lines, and entries such as "name: text".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

_NAME = r"\*{0,2}[a-z]\w*(?:\([a-z_, ]*\))?"
_ENTRY = re.compile(rf"^\s*({_NAME}(?:, {_NAME})*): (.*)$")
_CODE = re.compile(r"(``.+?``|`[^`]+`)")


def _inline(text: str) -> str:
    """`code` as a literal, and everything else without meaning to reStructuredText."""
    parts = _CODE.split(text)
    parts[1::2] = [f"``{code.strip('`')}``" for code in parts[1::2]]
    parts[::2] = [re.sub(r"([*|\\]|_(?!\w))", r"\\\1", plain) for plain in parts[::2]]
    return "".join(parts)


def _paragraph(lines: list[str]) -> Iterator[str]:
    """Entries become a definition list: a line that is no deeper than their names ends or continues them."""
    if all(line.startswith("    ") for line in lines) and not _ENTRY.match(lines[0]):
        yield from ["::", "", *lines]
        return
    names = -1  # the column in which names of entries begin; -1: outside
    for line in lines:
        column = len(line) - len(line.lstrip())
        entry = _ENTRY.match(line) if names < 0 or column == names else None
        if entry:
            yield from ["", _inline(f"`{entry[1]}`"), f"    {_inline(entry[2])}"]
            names = column
        elif column < names:
            yield from ["", _inline(line.strip())]
            names = -1
        else:
            yield ("    " if names >= 0 else "") + _inline(line.strip())


def rst_of(lines: list[str]) -> list[str]:
    """The lines of a docstring in reStructuredText."""
    paragraphs = [list(group) for filled, group in groupby(lines, key=lambda line: bool(line.strip())) if filled]
    return [line for paragraph in paragraphs for line in (*_paragraph(paragraph), "")]
