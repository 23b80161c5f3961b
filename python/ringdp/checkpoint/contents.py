"""A whole checkpoint in one process, without a model, an optimizer or a process group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ringdp.checkpoint.background import join_latest
from ringdp.checkpoint.block_reader import read_pieces, whole_of
from ringdp.checkpoint.errors import reading
from ringdp.checkpoint.manifest import read_manifest
from ringdp.checkpoint.plain import decode
from ringdp.checkpoint.saving import Folder
from ringdp.checkpoint.shelf import find


@dataclass(frozen=True)
class Contents:
    """tensors["exp_avg"]["layer.weight"] is a whole tensor; settings as holder.py describes; `extra` by rank."""

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    settings: dict[str, Any]
    extras: list[Any]


def read(folder: Folder, *, tensors: bool = True, allow_pickle: bool = False) -> Contents:
    """The latest checkpoint in `folder`, or the one that `folder` is, every hash compared. Not collective.

    tensors: False reads settings and extras only.
    A plain module takes them by load_state_dict({**tensors["parameter"], **tensors.get("buffer", {})}).
    """
    join_latest()
    path = find(Path(folder).absolute())
    with reading(path):
        manifest = read_manifest(path)
        found: dict[str, dict[str, Tensor]] = {}
        for piece in read_pieces(path, manifest, whole_of(manifest.specs)) if tensors else ():
            found.setdefault(piece.kind, {})[piece.name] = piece.tensor.view(piece.shape)
        extras = [decode(extra, allow_pickle=allow_pickle) for extra in manifest.extras]
        return Contents(path, found, decode(manifest.settings), extras)
