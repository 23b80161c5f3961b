"""`ringdp.json`, the last file of a checkpoint to be written: what it holds, and the hashes that prove it.

{"format": "ringdp checkpoint", "version": 1, "sha256": of "content" as `_canonical` writes it, "content": {...}}.
A tensor's sha256 is that of its pieces' sha256 (as hexadecimal text, one after the other) in the order of their
offsets, so ranks hash in parallel; a piece's is that of its bytes. "files" gives the length of every other file,
"order" the order in which a tensor's elements are counted (piece.py).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringdp.checkpoint.directory import FILE, write_durably
from ringdp.checkpoint.piece import CheckpointError, Spec, Stretch

FORMAT = "ringdp checkpoint"
VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds. settings, extras and rng are as plain.encode gives them, extras and rng by rank."""

    hashes: dict[Stretch, str]
    specs: list[Spec]
    files: dict[str, int]
    index_sha256: str
    settings: Any
    extras: list[Any]
    rng: list[Any]

    @property
    def ranks(self) -> int:
        """How many ranks saved it."""
        return len(self.extras)

    def write(self, folder: Path) -> None:
        """Writes the file, durably."""
        pieces: dict[Spec, list[tuple[Stretch, str]]] = {spec: [] for spec in self.specs}
        for stretch, digest in sorted(self.hashes.items()):
            pieces[stretch.spec].append((stretch, digest))
        content = {
            "files": self.files,
            "index_sha256": self.index_sha256,
            "settings": self.settings,
            "extras": self.extras,
            "rng": self.rng,
            "tensors": [_tensor_entry(spec, mine) for spec, mine in pieces.items()],
        }
        whole = {"format": FORMAT, "version": VERSION, "sha256": _sha256(_canonical(content)), "content": content}
        write_durably(folder / FILE, json.dumps(whole).encode())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder, whose files have the right lengths.

    Raises CheckpointError, naming the file, for one that is missing, truncated, corrupted, foreign or too new.
    """
    path = folder / FILE
    content = _checked_content(path)
    try:
        manifest = _from(content)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} lacks a part of its format: {type(error).__name__} {error}") from error
    for entry in content["tensors"]:
        _check_tensor(path, entry)
    for name, length in manifest.files.items():
        _check_length(folder / name, length)
    return manifest


def _from(content: dict[str, Any]) -> Manifest:
    entries = [(_spec_in(entry), entry) for entry in content["tensors"]]
    return Manifest(
        hashes={Stretch(spec, at, length): digest for spec, entry in entries for at, length, digest in entry["pieces"]},
        specs=[spec for spec, _ in entries],
        files={str(name): int(length) for name, length in content["files"].items()},
        index_sha256=content["index_sha256"],
        settings=content["settings"],
        extras=list(content["extras"]),
        rng=list(content["rng"]),
    )


def _tensor_entry(spec: Spec, pieces: list[tuple[Stretch, str]]) -> dict[str, Any]:
    return {
        "kind": spec.kind,
        "name": spec.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "order": list(spec.order),
        "sha256": _sha256("".join(digest for _, digest in pieces)),
        "pieces": [[stretch.offset, stretch.length, digest] for stretch, digest in pieces],
    }


def _spec_in(entry: dict[str, Any]) -> Spec:
    return Spec(entry["kind"], entry["name"], tuple(entry["shape"]), entry["dtype"], tuple(entry["order"]))


def _checked_content(path: Path) -> dict[str, Any]:
    """The content of the file, after checks of format, version and hash."""
    try:
        whole = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} is not a complete checkpoint of ringdp: it has no {FILE}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is truncated or corrupted: it is no JSON ({error})") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by ringdp.checkpoint: it lacks the format '{FORMAT}'")
    version = whole.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise CheckpointError(f"{path} has format version {version}, this ringdp reads up to {VERSION}: update ringdp")
    content = whole.get("content")
    if not isinstance(content, dict) or whole.get("sha256") != _sha256(_canonical(content)):
        raise CheckpointError(f"{path} is corrupted: its sha256 is not that of its content; take an older checkpoint")
    return content


def _check_tensor(path: Path, entry: dict[str, Any]) -> None:
    spec = _spec_in(entry)
    stop = 0
    for offset, length, _ in entry["pieces"]:
        if offset != stop:
            raise CheckpointError(f"{path} is incomplete: {spec} lacks or repeats elements {stop} to {offset}")
        stop += length
    if stop != spec.elements:
        raise CheckpointError(f"{path} is incomplete: {spec} has {stop} of {spec.elements} elements")
    if entry["sha256"] != _sha256("".join(digest for _, _, digest in entry["pieces"])):
        raise CheckpointError(f"{path} is corrupted: the sha256 of {spec} is not that of its pieces")


def _check_length(path: Path, length: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path} is missing or cannot be read ({error}); take an older checkpoint") from error
    if found != length:
        word = "truncated" if found < length else "longer than it was written"
        raise CheckpointError(f"{path} is {word}: {found} bytes, not {length}; take an older checkpoint")


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
