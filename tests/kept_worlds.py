"""Worlds of ranks that are kept: the tests of one process share them, because a rank takes long to start and to join."""

from __future__ import annotations

from ranks import World

KEPT = 8  # worlds: each rank is a process, with descriptors here, memory and threads that look around


class KeptWorlds:
    """worlds(3, transport="tcp"): a joined world, the same for the same arguments, unless 8 others came since."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], World] = {}  # the latest last
        self._used: set[tuple[object, ...]] = set()
        self._kind = ""

    def __call__(self, size: int, **settings: object) -> World:
        """Joined, all its ranks alive, none of its tests failed."""
        key = (self._kind, size, *sorted(settings.items()))
        self._used.add(key)
        if key in self._known and not self._known[key].is_alive():
            self._drop(key)
        if key not in self._known:
            if len(self._known) == KEPT:
                self._drop(next(iter(self._known)))
            world = World(size, **settings)
            try:
                world.join()
            except BaseException:
                world.close()
                raise
            self._known[key] = world
        self._known[key] = self._known.pop(key)
        return self._known[key]

    def begin_test(self, kind: str) -> None:
        """Worlds of one kind are not handed to tests of another: they do to their ranks what stays."""
        self._kind = kind
        self._used.clear()

    def drop_used(self) -> None:
        """The test has failed: in what state it left its ranks nobody knows, and the next must not suffer for it."""
        for key in self._used & self._known.keys():
            self._drop(key)

    def close(self) -> None:
        """Ends all."""
        for key in list(self._known):
            self._drop(key)

    def _drop(self, key: tuple[object, ...]) -> None:
        self._known.pop(key).close()
