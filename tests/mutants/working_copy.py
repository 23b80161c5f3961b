"""A copy of the working tree, in which faults are planted; files that are the same keep their time of change."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mutant import BadPatch, Mutant


class WorkingCopy:
    """The copy of `root` in `folder`/tree. One run at a time has it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.tree = folder / "tree"
        self._list = folder / "files.json"
        self._lock_file = folder / "lock"
        self.csrc_changes = 0  # how often a file below csrc/ was changed

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes the copy meanwhile; BlockingIOError when somebody does."""
        self._lock_file.parent.mkdir(parents=True, exist_ok=True)
        with self._lock_file.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def update(self) -> int:
        """Copies what differs from the working tree, which also repairs what a killed run left; how many files."""
        command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=self.root, capture_output=True, check=True).stdout.decode()
        names = sorted(name for name in listed.split("\0") if name and (self.root / name).is_file())
        before = []
        if self._list.exists():
            before = json.loads(self._list.read_text())
        else:  # nobody knows what is in it
            shutil.rmtree(self.tree, ignore_errors=True)
        for name in set(before) - set(names):
            (self.tree / name).unlink(missing_ok=True)
        changed = sum(self._copy(name) for name in names)
        self._list.parent.mkdir(parents=True, exist_ok=True)
        self._list.write_text(json.dumps(names))
        return changed

    def _copy(self, name: str) -> bool:
        source, target = self.root / name, self.tree / name
        content = source.read_bytes()
        if target.exists() and target.read_bytes() == content:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        self._write(name, content)
        shutil.copymode(source, target)
        return True

    def _write(self, name: str, content: bytes) -> None:
        (self.tree / name).write_bytes(content)
        self._changed(name)

    def _changed(self, name: str) -> None:
        self.csrc_changes += name.startswith("csrc/")
        path = self.tree / name
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # it may have been made in the same second, and then looks current

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """The copy with this fault in it; BadPatch when the patch does not apply."""
        missing = [file for file in mutant.files if not (self.tree / file).is_file()]
        if missing:
            raise BadPatch(f"does not apply: no {missing[0]}")
        before = {file: (self.tree / file).read_bytes() for file in mutant.files}
        try:
            self._apply(mutant)
            yield
        finally:
            for file, content in before.items():
                if (self.tree / file).read_bytes() != content:
                    self._write(file, content)

    def _apply(self, mutant: Mutant) -> None:
        # The copy lies in an ignored folder of a repository, where git apply would skip every file without saying so.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(self.tree.parent)}
        command = ["git", "apply", "--whitespace=nowarn", str(mutant.patch)]
        done = subprocess.run(command, cwd=self.tree, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise BadPatch(f"does not apply: {(done.stderr.strip().splitlines() or ['?'])[0]}")
        for file in mutant.files:
            self._changed(file)
