"""Errors as Python sees them: torch's own type, the kind first, no C++ trace behind it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import HERE


def refused() -> tuple[str, list[str], str]:
    """On a rank: an invalid call."""
    with pytest.raises(RuntimeError) as error:
        dist.all_reduce(torch.ones(2).to(torch.float8_e5m2))
    return type(error.value).__name__, [base.__name__ for base in type(error.value).__mro__], str(error.value)


def aborted() -> tuple[str, str]:
    """On a rank: rank 1 aborts a group in which the others wait; what they get, and what getError says."""
    group = dist.new_group(range(HERE.size))
    backend = group._get_backend(torch.device("cpu"))
    if HERE.rank == 1:
        backend.abort()
        backend.abort()
    with pytest.raises(dist.DistBackendError) as error:
        dist.all_reduce(torch.ones(4), group=group)
    dist.destroy_process_group(group)
    return str(error.value), type(error.value).__name__


def test_an_invalid_call_is_a_dist_backend_error(pair):
    for name, bases, message in pair.run(refused):
        assert name == "DistBackendError"
        assert "DistError" in bases and "RuntimeError" in bases
        assert message.startswith("InvalidArgument: all_reduce: SUM of float8_e5m2")
        assert "Exception raised from" not in message and ".cc" not in message


def test_abort_reaches_every_rank_and_may_be_repeated(trio):
    for message, name in trio.run(aborted):
        assert name == "DistBackendError"
        assert message.startswith("Aborted: ")
        assert "rank 1 aborted the process group" in message
