"""The directory of a run's checkpoints: one numbered folder each. A save is all or nothing.

A save writes into a folder `.unfinished-...`, which one rename turns into `checkpoint-000007`; so the highest number is
the latest complete checkpoint. Old checkpoints are renamed to `.removed-...` before they are deleted. The next save
deletes what an interrupted one left. A lock, which the kernel releases when its process dies, excludes a second saver.
Only rank 0 changes the directory; other ranks write their files into the unfinished folder.
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
    """Writes a file and syncs its content; its name is durable only after sync_folder()."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Syncs the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(source: Path, target: Path) -> None:
    """Renames inside one folder, and syncs it: after a crash there is either the old name or the new one."""
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
    """The checkpoint to load: the folder itself, or the latest one in it. CheckpointError if there is none."""
    if (folder / FILE).exists() or _NAME.fullmatch(folder.name):
        return folder
    found = numbered(folder) if folder.is_dir() else []
    if not found:
        seen = f"it holds {sorted(p.name for p in folder.iterdir())[:5]}" if folder.is_dir() else "it does not exist"
        raise CheckpointError(f"there is no complete checkpoint of ringdp in {folder}: {seen}")
    return found[-1]


class Slot:
    """The unfinished folder of one save, from the lock to the rename. On rank 0 only."""

    def __init__(self, directory: Path) -> None:
        """Locks the directory, deletes leftovers and makes the unfinished folder. CheckpointError if it is locked."""
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
            # A unique name: a surviving rank of an interrupted save may still be writing into its folder.
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
        # Not flock(): forked DataLoader workers that outlive a dead rank would keep the lock.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise CheckpointError(
            f"another process is saving into {directory} ({error}): give every job a folder of its own"
        ) from error
    return descriptor
