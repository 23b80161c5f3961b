"""Real text that every machine has: the .py files of Python's standard library, to train on and to validate.

All ranks read it for themselves. The order of files and the split depend on paths and contents only, so equal
installations give equal text; `check_equal` says so when they do not.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset

VOCABULARY = 256
VALIDATION_SHARE = 0.05
_SKIPPED = {"site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """Text as uint8 tensors of one dimension; `digest` is a sha256 over all of it in reading order."""

    train: Tensor
    validation: Tensor
    files: int
    digest: str


def read(folder: Path, limit: int = 0) -> Corpus:
    """All .py files under `folder`; with a limit, until that many bytes, some to validate, are there."""
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    digest = hashlib.sha256()
    size = files = 0
    for path in _python_files(folder):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(text)}\0".encode())
        digest.update(text)
        parts[_is_validation(text)].append(text)
        files += 1
        size += len(text)
        if limit and size >= limit and parts[True]:
            break
    return Corpus(_tensor(parts[False]), _tensor(parts[True]), files, digest.hexdigest())


class Windows(Dataset[Tensor]):
    """Windows of uint8 [length + 1], back to back: the last byte of one is the first of the next."""

    def __init__(self, text: Tensor, length: int, name: str) -> None:
        self._text, self._length = text, length
        if len(text) <= length:
            raise ValueError(
                f"the {name} text has {len(text)} bytes, too few for --seq {length}: "
                "take more text or shorter sequences"
            )

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._length

    def __getitem__(self, index: int) -> Tensor:
        start = index * self._length
        return self._text[start : start + self._length + 1]


def check_equal(corpus: Corpus) -> None:
    """Collective. Unless all ranks have read the same text, each raises RuntimeError with the odd ones."""
    mine = (corpus.digest, len(corpus.train) + len(corpus.validation), os.uname().nodename)
    of_ranks: list[tuple[str, int, str]] = [mine] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine)
    others = [rank for rank, (digest, _, _) in enumerate(of_ranks) if digest != of_ranks[0][0]]
    if others:
        sides = "; ".join(f"rank {rank} on {of_ranks[rank][2]}: {of_ranks[rank][1]} bytes" for rank in [0, *others])
        raise RuntimeError(f"the ranks read different text ({sides}): use the same Python everywhere, or one --corpus")


def _python_files(folder: Path) -> list[Path]:
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED)
        found += [Path(place, name) for name in names if name.endswith(".py")]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _is_validation(text: bytes) -> bool:
    """By contents, so that two copies of one file are on the same side of the split."""
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") < VALIDATION_SHARE * 2**32


def _tensor(texts: list[bytes]) -> Tensor:
    text = bytearray(b"\n".join(texts))
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
