"""The folder that checkpoints stand in: one numbered folder each, and what makes a save all or nothing.

A save works in `.unfinished-...` beside them and becomes `checkpoint-000007` by one rename, so the highest number is
the latest complete one and no pointer to it can be wrong. Old ones are renamed to `.removed-...` before they are
deleted. What a dead save left, the next one clears away; a lock that dies with its process keeps two savers apart.
Only rank 0 changes a shelf; other ranks write their files into the unfinished folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from pathlib import Path

from ringdp.checkpoint.durable import rename_durably, sync_folder
from ringdp.checkpoint.errors import CheckpointError
from ringdp.checkpoint.manifest import FILE

_NAME = re.compile(r"checkpoint-(\d{6,})")
_LEFTOVERS = (".unfinished-", ".removed-")
_LOCK = ".lock"


def numbered(shelf: Path) -> list[Path]:
    """The complete checkpoints on a shelf, oldest first."""
    found = [(int(match[1]), path) for path in shelf.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def find(folder: Path) -> Path:
    """The checkpoint that a user means: the folder itself, or the latest one on that shelf."""
    if (folder / FILE).exists() or _NAME.fullmatch(folder.name):
        return folder
    found = numbered(folder) if folder.is_dir() else []
    if not found:
        seen = f"it holds {sorted(p.name for p in folder.iterdir())[:5]}" if folder.is_dir() else "it does not exist"
        raise CheckpointError(f"there is no complete checkpoint of ringdp in {folder}: {seen}")
    return found[-1]


class Slot:
    """A place on a shelf for one save, from the lock to the rename. Owned by rank 0."""

    def __init__(self, shelf: Path) -> None:
        """Locks the shelf, clears away leftovers and makes the unfinished folder."""
        if (shelf / FILE).exists():
            raise CheckpointError(f"{shelf} is a checkpoint itself: save into the folder above it")
        shelf.mkdir(parents=True, exist_ok=True)
        self._shelf = shelf
        self._lock = _lock(shelf)
        try:
            for path in shelf.iterdir():
                if path.name.startswith(_LEFTOVERS):
                    shutil.rmtree(path)
            found = numbered(shelf)
            number = int(_NAME.fullmatch(found[-1].name)[1]) + 1 if found else 1
            self._target = shelf / f"checkpoint-{number:06d}"
            # A name of its own: a rank of a dead save that still writes must not write into this one.
            self.unfinished = shelf / f".unfinished-{number:06d}-{uuid.uuid4().hex}"
            self.unfinished.mkdir()
        except BaseException:
            self.close()
            raise

    def commit(self, keep: int | None) -> Path:
        """Makes the save the latest checkpoint, then removes all but the `keep` latest."""
        sync_folder(self.unfinished)
        rename_durably(self.unfinished, self._target)
        for path in numbered(self._shelf)[:-keep] if keep else []:
            removed = path.with_name(f".removed-{path.name}")
            path.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)
        return self._target

    def close(self) -> None:
        """Gives the place back; what was not committed is deleted."""
        if hasattr(self, "unfinished"):
            shutil.rmtree(self.unfinished, ignore_errors=True)
        os.close(self._lock)


def _lock(shelf: Path) -> int:
    descriptor = os.open(shelf / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # Not flock: forked DataLoader workers that outlive a dead rank would keep that one.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise CheckpointError(
            f"another process is saving into {shelf} ({error}): give every job a folder of its own"
        ) from error
    return descriptor
