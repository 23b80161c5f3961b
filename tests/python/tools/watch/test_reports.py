"""Reports as bytes, and the board in the store."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from ringdp.tools.watch import reports
from ringdp.tools.watch.figures import Row, packed, unpacked
from ringdp.tools.watch.reports import Board, Report

ROWS = [Row(5, 1, 0.25, 0.5), Row(6, 2, 1.0, 0, 0, 0.125, 2.0)]
REPORT = Report(2**64 - 1, packed(ROWS), [(5, 0, 2**64 - 1), (6, 15, 1)])


def test_what_is_packed_comes_out():
    assert Report.unpack(REPORT.pack()) == REPORT
    assert Report.unpack(Report(0, b"", []).pack()) == Report(0, b"", [])
    assert list(unpacked(REPORT.rows)) == ROWS


@pytest.mark.parametrize("content", [b"", b"rd", REPORT.pack()[:-1], REPORT.pack() + b"\0", b"x" + REPORT.pack()[1:]])
def test_other_bytes_are_refused(content):
    with pytest.raises(ValueError, match="report of"):
        Report.unpack(content)


@pytest.fixture
def store(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(reports.distributed_c10d, "_get_default_store", lambda: dist.PrefixStore("job", store))
    return store


def test_ranks_read_each_other_and_nothing_is_left(store):
    first, second, other = Board("a", 0, 3), Board("a", 1, 3), Board("b", 1, 3)
    other.show(b"other")
    assert other.shows(1)  # each has a connection of its own, on which a look comes after what was shown
    before = store.num_keys()
    assert first.reports() == {} and not second.shows(0)
    first.show(b"")
    second.show(b"one")
    second.show(b"two")
    assert second.shows(1)
    assert first.reports() == {1: b"two"} and second.shows(0)
    assert first.shows(0)
    first.clear()
    assert store.num_keys() == before


def test_only_a_store_that_does_not_grow_is_used(store, monkeypatch, tmp_path):
    assert reports.why_no_store() == ""
    monkeypatch.setattr(reports.distributed_c10d, "_get_default_store", lambda: dist.FileStore(str(tmp_path / "s"), 1))
    assert "the job's store is a FileStore, and only a TCPStore" in reports.why_no_store()
