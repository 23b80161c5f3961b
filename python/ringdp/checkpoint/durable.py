"""Files and folders that are on the disk, not only in its cache, when a function returns."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Writes a file; its bytes are on the disk, its name is when its folder is synced."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Puts the folder's list of names on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(source: Path, target: Path) -> None:
    """Renames inside one folder: after a crash there is the old name or the new one, never both or half of one."""
    source.rename(target)
    sync_folder(target.parent)
