"""The one error of this package: it names the file or the tensor, what is wrong with it, and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read. Nothing was changed unless the message says so."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around what only a damaged or forged file makes fail: whatever that raises is a CheckpointError naming it."""
    try:
        yield
    except CheckpointError as error:
        raise error if str(path) in str(error) else CheckpointError(f"{path}: {error}") from error
    except Exception as error:
        raise CheckpointError(
            f"{path} is damaged or not what its format promises ({type(error).__name__}: {error}); "
            "take an older checkpoint"
        ) from error
