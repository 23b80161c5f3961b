""".ci/lint.py: it finds what is not formatted, mends it, and skips by name what is not installed."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def lint(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    return importlib.import_module("lint")


@pytest.fixture
def tree(tmp_path):
    """A small repository with the settings of this one."""
    for name in (".clang-format", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("csrc", "tests"):
        (tmp_path / folder).mkdir()
    return tmp_path


def test_cpp_is_checked_and_formatted(lint, tree, capsys):
    if lint.clang_format() is None:
        pytest.skip("no clang-format 14")
    (tree / "csrc/good.h").write_text("#pragma once\nint f(int x);\n")
    assert lint.format_cpp(apply=False, root=tree)
    (tree / "csrc/bad.cc").write_text("int f( int x ) {return x;\n}\n")
    assert not lint.format_cpp(apply=False, root=tree)
    assert capsys.readouterr().out == "csrc/bad.cc: is not formatted (make format)\n"
    assert lint.format_cpp(apply=True, root=tree) and lint.format_cpp(apply=False, root=tree)
    assert (tree / "csrc/bad.cc").read_text() == "int f(int x) { return x; }\n"


@pytest.mark.parametrize("language", ["cpp", "python"])
def test_this_repository_is_formatted(lint, language):
    if (lint.clang_format() if language == "cpp" else lint.tool_named("ruff")) is None:
        pytest.skip("no clang-format 14" if language == "cpp" else "no ruff")
    assert getattr(lint, f"format_{language}")(apply=False)


def test_python_is_checked_and_formatted(lint, tree):
    if lint.tool_named("ruff") is None:
        pytest.skip("no ruff")
    bad = tree / "tests/bad.py"
    bad.write_text("x=1\n")
    assert not lint.format_python(apply=False, root=tree)
    assert lint.format_python(apply=True, root=tree) and lint.format_python(apply=False, root=tree)
    assert bad.read_text() == "x = 1\n"


def test_another_release_of_clang_format_is_none(lint, tree, monkeypatch):
    (tree / "bin").mkdir()
    other = tree / "bin/clang-format"
    other.write_text("#!/bin/sh\necho clang-format version 19.1.0\n")
    other.chmod(0o755)
    monkeypatch.setattr(lint.sys, "executable", str(tree / "bin/python"))
    assert lint.clang_format() is None
    other.write_text("#!/bin/sh\necho clang-format version 14.0.6\n")
    assert lint.clang_format() == str(other)


def test_what_is_not_installed_is_skipped_by_name(lint, tree, monkeypatch, capsys):
    monkeypatch.setattr(lint.shutil, "which", lambda _: None)
    monkeypatch.setattr(lint.sys, "executable", str(tree / "bin/python"))
    assert lint.format_cpp(apply=False, root=tree) and lint.format_python(apply=False, root=tree)
    assert capsys.readouterr().out == "skipped: no clang-format 14\nskipped: no ruff\n"


def test_other_commands_are_refused(lint, capsys):
    assert lint.main(["mend"]) == 2 and "lint.py check" in capsys.readouterr().err
