"""`ringdp report`: from a run's JSON to a page, and one line for everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from example_run import run
from ringdp.cli import main
from ringdp.tools.pages.run_file import figures


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "run.json"
    made.write_text(json.dumps(run()))
    return made


def test_the_page_lies_next_to_the_run(file: Path, capsys: Any) -> None:
    assert main.main(["report", str(file)]) == 0
    page = file.with_suffix(".html")
    assert capsys.readouterr().out.startswith(f"{page}: ")
    assert "A run of 3 steps on 2 ranks" in page.read_text()


def test_the_page_can_lie_elsewhere(file: Path, tmp_path: Path) -> None:
    assert main.main(["report", str(file), "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").is_file() and not file.with_suffix(".html").exists()


def test_a_file_that_is_no_run_is_one_line(file: Path, capsys: Any) -> None:
    file.write_text("{}")
    assert main.main(["report", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ringdp report: {file} is not a report of a run: it has no origin.began; ringdp.RunLog ")
    assert error.count("\n") == 1 and not file.with_suffix(".html").exists()


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: Any) -> None:
    assert main.main(["report", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err == f"ringdp report: cannot read {tmp_path}/none.json: No such file or directory\n"


def test_json_has_the_page_s_figures_and_writes_no_page(file: Path, capsys: Any) -> None:
    assert main.main(["report", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == figures(run())
    assert not file.with_suffix(".html").exists()


def test_a_page_or_figures(file: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main.main(["report", str(file), "--json", "--html", "x.html"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_torch_is_not_needed(file: Path, run_python: Any) -> None:
    code = f"import sys; sys.modules['torch'] = None\nfrom ringdp.cli import main\nmain.main(['report', {str(file)!r}])"
    result = run_python(code)
    assert result.returncode == 0, result.stderr
