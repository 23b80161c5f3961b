"""The programs of docs/: those that print a page, and what the site is made with."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from pages import DOCS


def generator_named(name: str) -> ModuleType:
    """docs/NAME.py as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
