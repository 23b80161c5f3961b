"""Replaces functions of torch while a tool watches, and puts them back."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


class Patches:
    """Replacements of one watcher. They are undone in reverse order; a second undo() does nothing."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def around(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replaces `owner.name` by make(original). AttributeError where this torch has no such function."""
        original = getattr(owner, name)
        own = name in vars(owner)
        setattr(owner, name, wraps(original)(make(original)))
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def __bool__(self) -> bool:
        """Whether there is anything to undo."""
        return bool(self._undo)

    def on_undo(self, function: Callable[[], object]) -> None:
        """Registers another undo function, such as a hook's remove()."""
        self._undo.append(function)

    def undo(self) -> None:
        """Restores everything."""
        while self._undo:
            self._undo.pop()()
