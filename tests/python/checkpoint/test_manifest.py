"""A manifest comes back as it was written; anything else is refused with its name and what is wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from ringdp.checkpoint import CheckpointError, Spec, Stretch
from ringdp.checkpoint.manifest import FILE, VERSION, Manifest, read_manifest

SPEC, EMPTY = Spec("exp_avg", "w", (2, 5), "float32"), Spec("parameter", "none", (0,), "float32")


def manifest_with(hashes: dict[Stretch, str]) -> Manifest:
    return Manifest(hashes, [SPEC, EMPTY], {"__0_0.distcp": 7}, "ab" * 32, {"a": 0.1}, [1, {"b": None}], [{}, {}])


def written(folder: Path, hashes: dict[Stretch, str] | None = None) -> Manifest:
    manifest = manifest_with(hashes or {Stretch(SPEC, 0, 4): "00" * 32, Stretch(SPEC, 4, 6): "11" * 32})
    (folder / "__0_0.distcp").write_bytes(b"7 bytes")
    manifest.write(folder)
    return manifest


def test_it_comes_back(tmp_path):
    manifest = written(tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert manifest.ranks == 2


def flip(path: Path, old: bytes, new: bytes) -> None:
    text = path.read_bytes()
    assert old in text
    path.write_bytes(text.replace(old, new, 1))


BREAKS = {
    "not a complete checkpoint": lambda folder: (folder / FILE).unlink(),
    "truncated or corrupted": lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-9]),
    "not written by ringdp.checkpoint": lambda folder: (folder / FILE).write_text('{"model": 1}'),
    f"format version {VERSION + 1}, this ringdp reads up to {VERSION}": lambda folder: flip(
        folder / FILE, b'"version": 1', b'"version": 2'
    ),
    "its sha256 is not that of its content": lambda folder: flip(folder / FILE, b"0.1", b"0.2"),
    "__0_0.distcp is missing": lambda folder: (folder / "__0_0.distcp").unlink(),
    "__0_0.distcp is truncated: 6 bytes, not 7": lambda folder: (folder / "__0_0.distcp").write_bytes(b"6 byte"),
    "__0_0.distcp is longer": lambda folder: (folder / "__0_0.distcp").write_bytes(b"8 bytes."),
}


@pytest.mark.parametrize("says", BREAKS)
def test_a_damaged_or_foreign_one_is_refused_by_name(says, tmp_path):
    written(tmp_path)
    BREAKS[says](tmp_path)
    with pytest.raises(CheckpointError) as caught:
        read_manifest(tmp_path)
    assert says in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ([(0, 4), (5, 5)], "lacks or repeats elements 4 to 5"),
        ([(0, 4)], "has 4 of 10 elements"),
        ([(0, 4), (3, 7)], "lacks or repeats elements 4 to 3"),
    ],
)
def test_a_tensor_that_is_not_whole_is_named(blocks, says, tmp_path):
    written(tmp_path, {Stretch(SPEC, offset, length): "00" * 32 for offset, length in blocks})
    with pytest.raises(CheckpointError, match=says) as caught:
        read_manifest(tmp_path)
    assert "exp_avg/w" in str(caught.value)


def test_a_tensor_hash_is_the_hash_of_its_pieces_in_order(tmp_path):
    written(tmp_path)
    entries = {entry["kind"]: entry for entry in json.loads((tmp_path / FILE).read_text())["content"]["tensors"]}
    assert entries["exp_avg"]["sha256"] == hashlib.sha256(("00" * 32 + "11" * 32).encode()).hexdigest()
    assert entries["parameter"]["sha256"] == hashlib.sha256(b"").hexdigest()
