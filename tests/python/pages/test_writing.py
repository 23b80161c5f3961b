"""Writing a page, and one line for what cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringdp.pages.writing import write


def test_a_page_is_written(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "b.html"
    assert write("ringdp x", file, "ä" * 1000) == 0
    assert file.read_text(encoding="utf-8") == "ä" * 1000
    assert capsys.readouterr().out == f"{file}: 2 kB, one file; open it in a browser\n"


def test_a_folder_is_no_file(tmp_path: Path, capsys: Any) -> None:
    assert write("ringdp x", tmp_path, "") == 2
    assert capsys.readouterr().err == f"ringdp x: cannot write {tmp_path}: Is a directory\n"


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "typo" / "b.html"
    assert write("ringdp x", file, "") == 2
    assert capsys.readouterr().err == f"ringdp x: cannot write {file}: No such file or directory\n"
    assert not file.parent.exists()
