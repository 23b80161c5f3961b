"""ringdp/cli/watched.py: the job's command line, and the folder of its records."""

from __future__ import annotations

import argparse

import pytest
from ringdp.cli import watched
from ringdp.cli.main import parse


def parsed(*arguments):
    return parse(["audit", *arguments])


def test_everything_behind_the_dashes_is_the_job_s():
    options = parsed("--fail", "--", "torchrun", "--nproc-per-node", "2", "train.py", "--fail", "--", "x")
    assert options.fail
    assert watched.job_of(options) == ["torchrun", "--nproc-per-node", "2", "train.py", "--fail", "--", "x"]
    assert watched.job_of(parsed()) == []


def test_a_command_without_dashes_is_refused_by_name():
    with pytest.raises(ValueError, match="'torchrun': put -- before"):
        watched.job_of(parsed("torchrun", "train.py"))


def test_a_private_folder_is_gone_afterwards_and_a_named_one_stays(tmp_path):
    with watched.assignment_in(None, "audit") as private:
        assert private.folder.is_dir() and private.tool == "audit"
    assert not private.folder.exists()
    with watched.assignment_in(str(tmp_path / "a" / "b"), "audit") as kept:
        pass
    assert kept.folder.is_dir()


@pytest.mark.parametrize(("kind", "text", "value"), [(int, "3", 3), (float, "0.5", 0.5)])
def test_numbers_above_0(kind, text, value):
    assert watched.positive(kind)(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [(int, "0", "whole number of 1"), (int, "1.5", "whole number"), (float, "inf", "above 0"), (float, "x", "above 0")],
)
def test_other_numbers_are_named(kind, text, said):
    with pytest.raises(argparse.ArgumentTypeError, match=said) as refused:
        watched.positive(kind)(text)
    assert f"'{text}'" in str(refused.value)


def test_records_of_an_earlier_job_are_refused(tmp_path):
    watched.refuse_old_records(tmp_path)
    (tmp_path / "rank0.jsonl").touch()
    with pytest.raises(ValueError, match="earlier job"):
        watched.refuse_old_records(tmp_path)
