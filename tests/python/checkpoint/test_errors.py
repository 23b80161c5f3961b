"""The package's error is caught by those who catch RuntimeError."""

import ringdp
from ringdp.checkpoint.errors import CheckpointError


def test_it_is_public_and_a_runtime_error():
    assert ringdp.checkpoint.CheckpointError is CheckpointError
    assert issubclass(CheckpointError, RuntimeError)
