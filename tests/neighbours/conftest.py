"""The same function over a default group of gloo and of ringdp, on ranks of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from ranks import World


@pytest.fixture(scope="session")
def values_over() -> Iterator[Callable[..., list[Any]]]:
    """values_over(backend, size, function, *args): function(backend, *args) on every rank of a world.

    A world is kept for its backend and size: what these tests import takes seconds.
    """
    known: dict[tuple[str, int], World] = {}
    with ExitStack() as stack:

        def run(backend: str, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
            if (backend, size) not in known:
                known[backend, size] = stack.enter_context(World(size))
            return known[backend, size].run(function, backend, *args)

        yield run


@pytest.fixture
def assert_same(values_over: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """assert_same(size, function, *args): ringdp's values are gloo's, to the bit; they are returned.

    In groups of two every sum has one order, so there is nothing to forgive.
    """

    def check(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        theirs, ours = (values_over(backend, size, function, *args) for backend in ("gloo", "ringdp"))
        assert ours == theirs
        assert ours[0], "the function returned nothing to compare"
        return ours

    return check
