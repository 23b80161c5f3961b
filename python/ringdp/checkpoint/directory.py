"""The directory of a run's checkpoints: one numbered folder each, and what makes a save all or nothing.

A save works in `.unfinished-...` next to them and becomes `checkpoint-000007` by one rename, so the highest number is
the latest complete one and no pointer to it can be wrong. Old ones are renamed to `.removed-...` before they are
deleted. The next save deletes what a dead one left; a lock that dies with its process keeps two savers apart. Only
rank 0 changes the directory; other ranks write their files into the unfinished folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from pathlib import Path

from ringdp.checkpoint.piece import CheckpointError


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


FILE = "ringdp.json"  # of a complete checkpoint, see manifest.py
_NAME = re.compile(r"checkpoint-(\d{6,})")
_LEFTOVERS = (".unfinished-", ".removed-")
_LOCK = ".lock"


def numbered(directory: Path) -> list[Path]:
    """The complete checkpoints in a directory, oldest first."""
    found = [(int(match[1]), path) for path in directory.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def find(folder: Path) -> Path:
    """The checkpoint that a user means: the folder itself, or the latest one in that directory."""
    if (folder / FILE).exists() or _NAME.fullmatch(folder.name):
        return folder
    found = numbered(folder) if folder.is_dir() else []
    if not found:
        seen = f"it holds {sorted(p.name for p in folder.iterdir())[:5]}" if folder.is_dir() else "it does not exist"
        raise CheckpointError(f"there is no complete checkpoint of ringdp in {folder}: {seen}")
    return found[-1]


class Slot:
    """The place of one save in a directory, from the lock to the rename. Owned by rank 0."""

    def __init__(self, directory: Path) -> None:
        """Locks the directory, clears away leftovers and makes the unfinished folder."""
        if (directory / FILE).exists():
            raise CheckpointError(f"{directory} is a checkpoint itself: save into the folder above it")
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._lock = _lock(directory)
        try:
            for path in directory.iterdir():
                if path.name.startswith(_LEFTOVERS):
                    shutil.rmtree(path)
            found = numbered(directory)
            number = int(_NAME.fullmatch(found[-1].name)[1]) + 1 if found else 1
            self._target = directory / f"checkpoint-{number:06d}"
            # A name of its own: a rank of a dead save that still writes must not write into this one.
            self.unfinished = directory / f".unfinished-{number:06d}-{uuid.uuid4().hex}"
            self.unfinished.mkdir()
        except BaseException:
            self.close()
            raise

    def commit(self, keep: int | None) -> Path:
        """Makes the save the latest checkpoint, then removes all but the `keep` latest."""
        sync_folder(self.unfinished)
        rename_durably(self.unfinished, self._target)
        for path in numbered(self._directory)[:-keep] if keep else []:
            removed = path.with_name(f".removed-{path.name}")
            path.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)
        return self._target

    def close(self) -> None:
        """Unlocks the directory; deletes what was not committed."""
        if hasattr(self, "unfinished"):
            shutil.rmtree(self.unfinished, ignore_errors=True)
        os.close(self._lock)


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # Not flock: forked DataLoader workers that outlive a dead rank would keep that one.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise CheckpointError(
            f"another process is saving into {directory} ({error}): give every job a folder of its own"
        ) from error
    return descriptor
