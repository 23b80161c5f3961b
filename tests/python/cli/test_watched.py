"""ringdp/cli/watched.py: the job's command line, and the folder of its records."""

from __future__ import annotations

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


def test_records_of_an_earlier_job_are_refused(tmp_path):
    watched.refuse_old_records(tmp_path)
    (tmp_path / "rank0.jsonl").touch()
    with pytest.raises(ValueError, match="earlier job"):
        watched.refuse_old_records(tmp_path)
