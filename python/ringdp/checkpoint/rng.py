"""The random number generators of a rank: Python's, numpy's if it is loaded, torch's on the CPU and on CUDA devices.

A checkpoint has those of every rank. With the same number of ranks, each rank restores its own. With another number,
rank r of N seeds its generators with the sha256 of (all saved states, N, r), which is the same in every resume.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ringdp.checkpoint.plain import decode, encode

_NUMPY_SEEDS = 1 << 32


def capture() -> dict[str, Any]:
    """The state of this rank's generators, as JSON values."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return encode(states)


def resume(saved: Sequence[dict[str, Any]], rank: int, size: int) -> None:
    """Sets this rank's generators from those of all saved ranks."""
    if len(saved) == size:
        _restore(saved[rank])
    else:
        _start_afresh(seed_of(saved, rank, size))


def seed_of(saved: Sequence[dict[str, Any]], rank: int, size: int) -> int:
    """The seed of rank `rank` of `size` if the checkpoint was saved by another number of ranks."""
    text = json.dumps([list(saved), size, rank], sort_keys=True)
    # torch.manual_seed takes 64 bits, signed.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def _restore(saved: dict[str, Any]) -> None:
    states = decode(saved)
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available() and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all(states["cuda"])


def _start_afresh(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % _NUMPY_SEEDS)
