"""What is written is synced, and a folder is synced after the rename in it."""

from __future__ import annotations

import os

from ringdp.checkpoint.durable import rename_durably, write_durably


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
