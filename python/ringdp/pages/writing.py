"""Writes a page where the command line was told to."""

from __future__ import annotations

import sys
from pathlib import Path


def write(command: str, file: Path, page: str) -> int:
    """The exit status: 0, or 2 when the file cannot be written, which one line says."""
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as problem:
        print(f"{command}: cannot write {file}: {problem.strerror}", file=sys.stderr)
        return 2
    print(f"{file}: {len(page.encode()) // 1000} kB, one file; open it in a browser")
    return 0
