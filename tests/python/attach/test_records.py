"""ringdp/attach/records.py: files of ranks that may still be growing."""

from __future__ import annotations

import json

import pytest
from ringdp.attach.records import Reader, absent, world_of


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
