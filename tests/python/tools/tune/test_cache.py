"""What is trusted, what is ignored with one warning, and that no job fails because of a file."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
from ringdp import _native
from ringdp.tools.tune import cache


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The file of this host, which does not exist yet."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "deep" / "tuned.json"))
    return cache.path()


def written(file: Path, **replaced: object) -> None:
    cache.save({"spin_us": 17})
    content = {**json.loads(file.read_text()), **replaced}
    file.write_text(json.dumps(content))


def test_what_is_saved_is_loaded_and_kept(file):
    assert cache.load() == {}
    assert cache.save({"spin_us": 17, "slot_bytes_of_two": 8192}) == file
    assert cache.save({"spin_us": 18}) == file
    assert cache.load() == {"spin_us": 18, "slot_bytes_of_two": 8192}
    assert list(file.parent.iterdir()) == [file], "no half-written file is left"


def test_a_failed_write_leaves_the_old_file(file, monkeypatch):
    cache.save({"spin_us": 17})

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(cache.os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        cache.save({"spin_us": 18})
    assert cache.load() == {"spin_us": 17}
    assert list(file.parent.iterdir()) == [file]


def test_the_file_is_the_host_s_in_the_user_s_cache(tmp_path, monkeypatch):
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = cache.path()
    assert here.parent == tmp_path / "ringdp"
    facts = cache.host()
    for fact in facts:
        monkeypatch.setattr(cache, "host", lambda fact=fact: {**facts, fact: "other"})
        assert cache.path() != here, fact
    monkeypatch.setattr(cache, "host", lambda: facts)
    assert cache.path() == here
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.path().parent == tmp_path / ".cache" / "ringdp"


def test_off_means_no_file(monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, "off")
    assert cache.path() is None
    assert cache.load() == {}
    with pytest.raises(ValueError, match="RINGDP_TUNE=off"):
        cache.save({"spin_us": 17})


BAD = {
    "empty": ("", "not JSON"),
    "cut off": ('{"format": 1, "val', "not JSON"),
    "binary": ("\0\1\2", "not JSON"),
    "a list": ("[1]", "did not write it"),
    "deep": ("[" * 60000, ""),
    "too large": (" " * (1 << 17), "larger than"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_broken_file_is_ignored_with_one_warning(file, name):
    text, why = BAD[name]
    file.parent.mkdir()
    file.write_text(text)
    expect_ignored(file, why)


@pytest.mark.parametrize(
    ("replaced", "why"),
    [
        ({"format": 2}, "another release"),
        ({"values": []}, "another release"),
        ({"host": {**cache.host(), "ringdp": "0.0.1"}}, "measured on"),
        ({"host": {**cache.host(), "cores": 0}}, "measured on"),
        ({"values": {"heap_bytes": 0}}, "heap_bytes=0 is not a value"),
        ({"values": {"spin_us": "50"}}, "spin_us='50' is not a value"),
        ({"values": {"spin_us": True}}, "spin_us=True is not a value"),
        ({"values": {"spin_us": -1}}, "invalid value '-1' for spin_us"),
        ({"values": {"slot_bytes_of_two": 100}}, "invalid value '100' for slot_bytes_of_two"),
    ],
)
def test_a_foreign_or_outdated_file_is_ignored_with_one_warning(file, replaced, why):
    written(file, **replaced)
    expect_ignored(file, why)


def test_a_folder_in_its_place_is_ignored(file):
    file.mkdir(parents=True)
    expect_ignored(file, "directory")


def test_a_pipe_in_its_place_is_ignored_and_blocks_no_reader(file):
    file.parent.mkdir()
    os.mkfifo(file)
    expect_ignored(file, "not a regular file")


def expect_ignored(file: Path, why: str) -> None:
    with pytest.warns(RuntimeWarning, match="is ignored: ") as heard:
        assert cache.load() == {}
    assert len(heard) == 1
    assert str(file) in str(heard[0].message) and why in str(heard[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.load() == {}, "said once is enough"


def test_tuned_values_stand_in_for_defaults_only(file):
    cache.save({"spin_us": 17, "slot_bytes_of_two": 8192})
    rows = _native.load().setting_table()
    rows = [{**row, "source": "environment"} if row["field"] == "spin_us" else row for row in rows]
    shown = {row["field"]: row for row in cache.in_force(rows) if row["field"]}
    assert (shown["slot_bytes_of_two"]["value"], shown["slot_bytes_of_two"]["source"]) == ("8192", "tuned")
    assert shown["spin_us"]["source"] == "environment" and shown["spin_us"]["value"] != "17"
    assert shown["slot_bytes_of_more"]["source"] == "default"


def test_every_measured_field_is_a_setting():
    assert set(cache.FIELDS) <= {row["field"] for row in _native.load().setting_table()}
