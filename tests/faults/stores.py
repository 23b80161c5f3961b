"""A store that stands before the job's own: what a test changes of it overrides one call."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist


class Before(dist.Store):
    """Passes everything on."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self.store = store

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=60)) -> None:
        self.store.wait(keys, timeout)

    def get(self, key: str) -> bytes:
        return self.store.get(key)

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        return self.store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)
