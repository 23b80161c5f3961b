"""The picture: a PNG with every phase, also without a comparison, and none without matplotlib."""

from __future__ import annotations

import importlib.util

import pytest
from ringdp.examples import plot
from ringdp.examples.comparison import Comparison, Split
from ringdp.examples.trainer import History

HISTORY = History(losses=[5.0, 4.0, 3.5], validation=[(0, 5.1), (3, 3.6)], step_seconds=[0.3, 0.3, 0.4])
SPLIT = Split(0.04, 0.08, 0.01, 0.007)
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    "comparison", [Comparison(SPLIT, SPLIT, 1.0, None), Comparison(SPLIT, SPLIT, 1.0, None, SPLIT, 1.0), None]
)
def test_a_png_is_written(tmp_path, comparison):
    pytest.importorskip("matplotlib")
    path = plot.draw(tmp_path / "new", "title", "ringdp", HISTORY, comparison)
    assert path is not None
    assert path.read_bytes().startswith(PNG)
    assert path.stat().st_size > 10_000


def test_without_matplotlib_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert plot.draw(tmp_path, "title", "ringdp", HISTORY, None) is None
    assert list(tmp_path.iterdir()) == []


def test_smoothing_keeps_a_constant_and_follows_a_change():
    assert plot.smooth([2.0] * 5) == pytest.approx([2.0] * 5)
    step = plot.smooth([0.0] * 50 + [1.0] * 50)
    assert 0 < step[52] < 0.5 < step[60] < step[99] < 1
