"""ringdp/attach/rank_file.py: records on disk at once, from the process that opened the file, and never an error."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from ringdp.attach.rank_file import RankFile, identity


@pytest.fixture
def as_rank_2(monkeypatch):
    for name, value in {"RANK": "2", "WORLD_SIZE": "4", "TORCHELASTIC_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)


def lines_in(folder):
    (file,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_header_and_every_record_at_once(tmp_path, as_rank_2):
    write = RankFile(tmp_path)
    assert list(tmp_path.iterdir()) == []
    write({"kind": "batch", "indices": [1, torch.tensor(2), np.int64(3), {1}]})
    header, record = lines_in(tmp_path)  # the file is still open
    assert (header["rank"], header["world"], header["restart"], header["pid"]) == (2, 4, 1, os.getpid())
    assert record == {"kind": "batch", "indices": [1, 2, 3, "{1}"]}


def test_without_a_launcher_it_is_a_job_of_one(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert identity() == (0, 1)


def test_forked_children_write_nothing(tmp_path, as_rank_2, monkeypatch):
    write = RankFile(tmp_path)
    write({"kind": "one"})
    monkeypatch.setattr(os, "getpid", lambda: 1)
    write({"kind": "two"})
    assert [line["kind"] for line in lines_in(tmp_path)] == ["rank", "one"]


def test_a_folder_that_is_gone_is_said_once(tmp_path, as_rank_2, recwarn):
    write = RankFile(tmp_path / "gone")
    write({"kind": "one"})
    write({"kind": "two"})
    assert [str(w.message).startswith("ringdp stops watching") for w in recwarn] == [True]
