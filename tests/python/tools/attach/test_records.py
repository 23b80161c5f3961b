"""Records are on disk at once, from the process that opened the file, and are read while files still grow."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from ringdp.tools.attach.records import RankFile, Reader, absent, identity, world_of


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


def line(**values):
    return json.dumps(values) + "\n"


def header(rank, restart=0, time=0.0, world=3):
    return line(kind="rank", rank=rank, world=world, restart=restart, time=time)


def test_reading_goes_on_behind_the_last_complete_line(tmp_path):
    file = tmp_path / "rank0.jsonl"
    whole = line(kind="batch", step=1)
    file.write_text(header(0) + whole[:5])
    reader = Reader(tmp_path)
    assert reader.read()[0].of("batch") == []
    with file.open("a") as stream:
        stream.write(whole[5:] + line(kind="batch", step=2))
    records = reader.read()[0]
    assert [row["step"] for row in records.of("batch")] == [1, 2]
    assert (records.rank, records.lines) == (0, 3)
    assert reader.read()[0].lines == 3


def test_the_latest_life_of_a_rank_counts(tmp_path):
    (tmp_path / "a.jsonl").write_text(header(1, restart=1, time=1.0) + line(kind="new"))
    (tmp_path / "b.jsonl").write_text(header(1, restart=0, time=2.0) + line(kind="old"))
    ranks = Reader(tmp_path).read()
    assert list(ranks[1].kinds) == ["rank", "new"]
    assert (world_of(ranks), absent(ranks)) == (3, [0, 2])


def test_no_records_are_no_world(tmp_path):
    ranks = Reader(tmp_path).read()
    assert (ranks, world_of(ranks), absent(ranks)) == ({}, 0, [])


def first_line(**changes):
    return line(**{"kind": "rank", "rank": 0, "world": 2, "restart": 0, "time": 0.0, **changes})


HEADERS = [{"world": 10**9}, {"world": "2"}, {"rank": 2}, {"rank": -1}, {"rank": 0.5}, {"time": None}, {"restart": []}]


FOREIGN = ["not json\n", '{"kind":"batch"}\n', "[]\n", "[" * 100000 + "\n"]


@pytest.mark.parametrize("text", [*FOREIGN, *(first_line(**change) for change in HEADERS)])
def test_a_file_of_something_else_is_named(tmp_path, text):
    (tmp_path / "other.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"other\.jsonl holds no records"):
        Reader(tmp_path).read()
