"""The one error of this package: it names the file or the tensor, what is wrong with it, and the way out."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read. Nothing was changed unless the message says so."""
