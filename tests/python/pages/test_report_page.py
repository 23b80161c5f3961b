"""The page about a run, in a real browser: every number of the report, what was not measured, and axe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from example_run import run
from ringdp.pages import report_page


def text_of(page: Any) -> str:
    return page.driver.find_element("css selector", "main").text


def test_the_numbers_of_a_run(opened: Any) -> None:
    page = opened(report_page.page(run()))
    text = text_of(page)
    assert page.driver.title == "A run of 3 steps on 2 rank(s) over ringdp"
    for sentence in (
        "All ranks ended with the same parameters; the proof's run has the bits of one process (sha256 bbbbbbbbbbbb).",
        "Training loss from 5.5000 to 4.0000 nats per byte in 3 steps; on text never trained on from 5.6000 to 4.1000.",
        "3,000 tokens per second over all ranks and steps, 1,000 tokens a step.",
        "75% of the communication was hidden behind the backward pass. In the last step communication took 12.00 ms "
        "on rank 0, of which 3.00 ms were exposed.",
        "Counted 1,608 bytes, 1.005 of the formula's 1,600: 16 bytes for each of 100 parameters. "
        "Beside it 64 bytes of padding, gathered units and buckets, which live during a step.",
        "plan: arena (all ranks share memory)",
        "Per step, over all ranks: 0 bytes over links, 12,345 bytes in memory.",
        "<text> & more",
    ):
        assert sentence in text, sentence
    assert "nproc" not in text


def test_the_split_of_a_step(opened: Any) -> None:
    page = opened(report_page.page(run()))
    first = page.driver.find_element("css selector", "table")
    assert [row.text for row in first.find_elements("css selector", "tbody tr")] == [
        "ringdp (ringdp) 20.00 ms 30.00 ms 4.00 ms 6.00 ms 60.00 ms",
        "gloo 20.00 ms 30.00 ms 12.00 ms 6.00 ms 68.00 ms",
    ]


def test_charts_are_to_scale(opened: Any) -> None:
    """Bars of the split: lengths are in the ratio of their seconds."""
    page = opened(report_page.page(run()))
    chart = page.driver.find_elements("css selector", "svg")[2]
    bars = [bar for bar in chart.find_elements("css selector", "rect") if bar.get_attribute("height") == "24"]
    lengths = [float(bar.get_attribute("width")) for bar in bars]
    assert len(lengths) == 8
    assert [length / lengths[0] for length in lengths[:4]] == pytest.approx([1, 1.5, 0.2, 0.3], rel=0.01)


def test_what_was_not_measured_is_said() -> None:
    page = report_page.page(run(comparison=None, observed__overlap=None, observed__memory=None, observed__links=[]))
    for sentence in (
        "Not measured: the run had --rounds 0.",
        "keeps no times of its buckets.",
        "By the formula 1,600 bytes, 16 bytes for each of 100 parameters; not counted.",
        "ringdp does not say how it reaches its peers.",
    ):
        assert sentence in page


def test_wrong_bits_are_loud() -> None:
    page = report_page.page(run(final_hashes=["a", "b"], equal_to_one_process=False))
    assert "RANKS ENDED WITH DIFFERENT PARAMETERS" in page and "DIFFERS from one process" in page


def test_one_step_and_no_buckets_still_make_a_page(opened: Any) -> None:
    history = {"losses": [5.0], "validation": [], "step_seconds": [0.1]}
    page = opened(report_page.page(run(history=history, observed__overlap__buckets=[])))
    assert "in 1 steps" in text_of(page)


@pytest.mark.parametrize("theme_clicks", [1, 2])
def test_accessible(theme_clicks: int, opened: Any) -> None:
    page = opened(report_page.page(run()))
    for _ in range(theme_clicks):
        page.click("theme")
    assert page.violations() == []
