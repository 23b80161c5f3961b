"""change_ranks: parts on different numbers of ranks have the bits of the run that nobody disturbed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ringdp.examples import change_ranks, launch


@pytest.fixture(autouse=True)
def no_rank(monkeypatch):
    """A process that torchrun has not started."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def on_rank(folder: str, until: int) -> dict[str, Any]:
    return change_ranks.part(Path(folder), until)


@pytest.fixture
def on_kept_ranks(world_of, monkeypatch):
    """Instead of torchrun's: ranks that are there. The arguments are read as an example's."""

    def start_part(ranks: int, arguments: list[str]) -> str:
        options = change_ranks.parser().parse_args(arguments)
        assert options.json
        reports = world_of(ranks).run(on_rank, str(options.folder), options.until)
        assert len({report["hash"] for report in reports}) == 1
        return json.dumps(reports[0])

    monkeypatch.setattr(change_ranks, "start_part", start_part)


def test_three_numbers_of_ranks_and_none(on_kept_ranks, capsys):
    assert change_ranks.main(["--ranks", "2,1,3", "--steps", "13", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    steps = [(part["ranks"], part["first"], part["until"]) for part in report["parts"]]
    assert steps == [(2, 0, 4), (1, 4, 8), (3, 8, 13)]  # the last one with an epoch's first step
    assert report["equal"] and report["parts"][-1]["hash"] == report["undisturbed"]
    assert len({part["hash"] for part in report["parts"]}) == 3
    text = change_ranks.render(report)
    assert text.count(report["undisturbed"]) == 2 and text.endswith("equal: yes")


def test_another_result_is_said(on_kept_ranks, monkeypatch, capsys):
    monkeypatch.setattr(change_ranks, "undisturbed", lambda steps: "0" * 64)
    assert change_ranks.main(["--ranks", "2", "--steps", "1"]) == 1
    assert capsys.readouterr().out.endswith("equal: NO\n")


def test_torchrun_gets_what_a_part_needs(monkeypatch):
    started = []

    def run(command: list[str], **given: Any) -> Any:
        started.append(command)
        assert given["env"]["OMP_NUM_THREADS"] == "1" and given["check"]
        return type("Done", (), {"stdout": "said"})

    monkeypatch.setattr(change_ranks.subprocess, "run", run)
    assert change_ranks.start_part(3, ["--until", "7"]) == "said"
    assert started == [launch.torchrun_command(change_ranks.MODULE, 3, ["--until", "7"])]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", "8,many"], "--ranks 8,many: invalid value 'many'"),
        (["--ranks", "2,2,2", "--steps", "2"], "--steps is 2, must be at least one for each of 3 parts"),
        (["--until", "3"], "--folder and --until are for a part that torchrun starts"),
    ],
)
def test_bad_arguments_are_named(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        change_ranks.main(arguments)
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_a_part_needs_its_folder(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(SystemExit):
        change_ranks.main([])
    assert "give --folder and --until" in capsys.readouterr().err
