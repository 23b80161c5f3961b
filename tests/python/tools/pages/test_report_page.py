"""The page about a run, in a real browser: every number of the report, what was not measured, and axe."""

from __future__ import annotations

from typing import Any

import pytest
from example_run import plain_run, run
from ringdp.tools.pages import report_page


def text_of(page: Any) -> str:
    return page.driver.find_element("css selector", "main").text


def test_the_numbers_of_a_run(opened: Any) -> None:
    page = opened(report_page.page(run()))
    text = text_of(page)
    assert page.driver.title == "A run of 3 steps on 2 ranks over ringdp"
    for sentence in (
        "All ranks ended with the same parameters; the proof's run has the bits of one process (sha256 bbbbbbbbbbbb).",
        "Training loss from 5.5000 to 4.0000. Validation loss from 5.6000 to 4.1000.",
        "3,000 tokens per second over all ranks and steps, 1,000 tokens a step.",
        "75% of the communication was hidden behind the backward pass. In the last step communication took 12.00 ms "
        "on rank 0, of which 3.00 ms were exposed.",
        "Counted 1,608 bytes after the first step. That is 1.005 of the formula's 1,600: 16 bytes for each of 100 "
        "parameters. Beside it 64 bytes of padding, gathered units and buckets.",
        "plan: arena (all ranks share memory)",
        "Per step, over all ranks: 0 bytes over links, 12,345 bytes in memory.",
        "<text> & more",
        "Began 2026-05-04 13:02:01+02:00 on node-a, by python train.py --lr 1e-3",
    ):
        assert sentence in text, sentence
    assert "nproc" not in text


def test_the_split_of_a_step(opened: Any) -> None:
    page = opened(report_page.page(run()))
    own, compared = page.driver.find_elements("css selector", "table")[:2]
    assert [row.text for row in own.find_elements("css selector", "tbody tr")] == [
        "median of steps 75.00 ms 150.00 ms 30.00 ms 120.00 ms 375.00 ms",
        "slowest: step 1 100.00 ms 200.00 ms 50.00 ms 150.00 ms 500.00 ms",
    ]
    assert [row.text for row in compared.find_elements("css selector", "tbody tr")] == [
        "ringdp (ringdp) 20.00 ms 30.00 ms 4.00 ms 6.00 ms 60.00 ms",
        "gloo 20.00 ms 30.00 ms 12.00 ms 6.00 ms 68.00 ms",
    ]


def test_charts_are_to_scale(opened: Any) -> None:
    """Bars of the split: lengths are in the ratio of their seconds."""
    page = opened(report_page.page(run()))
    chart = page.driver.find_elements("css selector", "svg")[3]
    bars = [bar for bar in chart.find_elements("css selector", "rect") if bar.get_attribute("height") == "24"]
    lengths = [float(bar.get_attribute("width")) for bar in bars]
    assert len(lengths) == 8
    assert [length / lengths[0] for length in lengths[:4]] == pytest.approx([1, 1.5, 0.2, 0.3], rel=0.01)


def test_what_was_not_measured_is_said() -> None:
    nothing = {"observed__overlap": None, "observed__memory": None, "observed__links": []}
    page = report_page.page(run(comparison=None, history__phases=[None] * 3, **nothing))
    for sentence in (
        "keeps no times of its passes.",
        "keeps no times of its buckets.",
        "Not counted: no optimizer step was seen",
        "ringdp does not say how it reaches its peers.",
    ):
        assert sentence in page


def test_wrong_bits_are_loud() -> None:
    page = report_page.page(run(final_hashes=["a", "b"], equal_to_one_process=False))
    assert "RANKS ENDED WITH DIFFERENT PARAMETERS" in page and "DIFFERS from one process" in page


def test_one_step_and_no_buckets_still_make_a_page(opened: Any) -> None:
    history = {"losses": [5.0], "validation": [], "step_seconds": [0.1], "phases": [None]}
    page = opened(report_page.page(run(history=history, observed__overlap__buckets=[])))
    assert "Training loss from 5.0000 to 5.0000." in text_of(page)


def test_a_run_of_any_loop_has_a_page() -> None:
    page = report_page.page({**plain_run(), "unit": "steps", "items_per_step": 1, "settings": {}})
    step = "Where a step&#x27;s time goes"
    for heading in ("Loss", "Throughput", step, "Overlap", "Memory of rank 0", "Links, and why", "Settings"):
        assert f"<h2>{heading}</h2>" in page
    for heading in ("Bits", "Beside other"):
        assert f"<h2>{heading}" not in page
    assert "RunLog was given none" in page
    assert "3.00 steps per second over all ranks and steps.<" in page


def test_an_optimizer_without_a_formula_is_said() -> None:
    assert "there is no formula for it" in report_page.page(run(observed__formula=None))


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([5.0, None, None], "Training loss from 5.0000 to 5.0000. NOT A FINITE NUMBER 2 TIMES, the first at step 2."),
        ([None] * 3, "Training loss: NOT A FINITE NUMBER 3 TIMES, the first at step 1."),
    ],
)
def test_a_loss_that_is_no_number_is_loud(losses: list[Any], said: str) -> None:
    page = report_page.page(run(history__losses=losses, history__validation=[[0, 1.0], [3, None]]))
    assert said in page and "Validation loss from 1.0000 to 1.0000. NOT A FINITE NUMBER 1 TIMES" in page


@pytest.mark.parametrize("theme_clicks", [1, 2])
def test_accessible(theme_clicks: int, opened: Any) -> None:
    page = opened(report_page.page(run()))
    for _ in range(theme_clicks):
        page.click("theme")
    assert page.violations() == []
