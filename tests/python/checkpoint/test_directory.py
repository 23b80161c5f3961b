"""The directory of checkpoints: found, numbered, locked, cleared, and on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ringdp.checkpoint import CheckpointError
from ringdp.checkpoint.directory import Slot, find, numbered, rename_durably, write_durably
from ringdp.checkpoint.manifest import FILE


def saved(directory: Path, keep: int | None = None) -> Path:
    slot = Slot(directory)
    try:
        (slot.unfinished / FILE).write_text("{}")
        return slot.commit(keep)
    finally:
        slot.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


def test_numbers_go_up_and_the_latest_is_found(tmp_path):
    directory = tmp_path / "new" / "directory"
    paths = [saved(directory) for _ in range(3)]
    assert [path.name for path in paths] == ["checkpoint-000001", "checkpoint-000002", "checkpoint-000003"]
    assert numbered(directory) == paths
    assert find(directory) == paths[-1]
    assert find(paths[0]) == paths[0]


def test_numbers_are_compared_as_numbers(tmp_path):
    (tmp_path / "checkpoint-1000000").mkdir()
    (tmp_path / "checkpoint-999999").mkdir()
    assert saved(tmp_path).name == "checkpoint-1000001"


def test_only_the_latest_are_kept(tmp_path):
    for _ in range(4):
        saved(tmp_path, keep=2)
    assert names(tmp_path) == ["checkpoint-000003", "checkpoint-000004"]


def test_a_save_that_is_given_up_leaves_nothing(tmp_path):
    first = saved(tmp_path)
    Slot(tmp_path).close()
    assert names(tmp_path) == [first.name]


def test_leftovers_of_dead_saves_are_cleared_and_nothing_else(tmp_path):
    for name in (".unfinished-000009-abc", ".removed-checkpoint-000001", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    assert saved(tmp_path).name == "checkpoint-000001"
    assert names(tmp_path) == ["checkpoint-000001", "mine"]


def test_a_second_process_is_refused_until_the_first_is_done_or_dead(tmp_path):
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            Slot(tmp_path)
            os.write(done, b"1")
            os.read(os.pipe()[0], 1)  # until killed
        finally:
            os._exit(1)
    os.read(ready, 1)
    with pytest.raises(CheckpointError, match="another process is saving into"):
        Slot(tmp_path)
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert saved(tmp_path).name == "checkpoint-000001"


def test_saving_into_a_checkpoint_is_refused(tmp_path):
    path = saved(tmp_path)
    with pytest.raises(CheckpointError, match="is a checkpoint itself"):
        Slot(path)


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_a_checkpoint_is_named(exists, tmp_path):
    directory = tmp_path / "directory"
    if exists:
        directory.mkdir()
        (directory / "model.pt").write_text("x")
    with pytest.raises(CheckpointError, match="no complete checkpoint of ringdp in") as caught:
        find(directory)
    assert ("model.pt" if exists else "does not exist") in str(caught.value)


def synced_paths(monkeypatch) -> list[str]:
    """The paths that os.fsync gets, in order, as they are called at that moment."""
    seen: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        seen.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return seen


def test_a_file_is_synced_when_it_is_whole(tmp_path, monkeypatch):
    seen = synced_paths(monkeypatch)
    write_durably(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"
    assert seen == [str(tmp_path / "a")]


def test_a_rename_is_followed_by_a_sync_of_the_folder(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    seen = synced_paths(monkeypatch)
    rename_durably(tmp_path / "old", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert seen == [str(tmp_path)]
