"""The scaling calculator, operated in a real browser against the planner's formulas in Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
from ringdp.tools.pages import wall_page
from ringdp.tools.pages.document import document
from ringdp.tools.planner import formulas

SETTING = {"peak_tflops": 989, "mfu": 0.5, "bandwidth": 400e9, "global_tokens": 1048576}


@pytest.fixture
def wall(opened: Any) -> Any:
    return opened(document("calculator", [wall_page.tab()], wall_page.scripts()))


def put(wall: Any, name: str, value: object) -> None:
    """Types a number into a field."""
    field = wall.at(name)
    field.clear()
    field.send_keys(str(value))


def red(wall: Any, card: str) -> bool:
    return "bad" in wall.at(f"card-{card}").get_attribute("class").split()


@pytest.mark.parametrize(
    ("card", "formula", "quoted"),
    [("comm", formulas.wall_ranks_backward_only, 848), ("comm-step", formulas.wall_ranks_whole_step, 1272)],
)
@pytest.mark.parametrize(("wire", "wire_bytes"), [("BF16", 2), ("FP8", 1), ("FP32", 4)])
def test_a_card_turns_red_at_its_wall(
    card: str, formula: Any, quoted: int, wire: str, wire_bytes: int, wall: Any
) -> None:
    """B17: about 848 and 1272 ranks in BF16; FP8 doubles both."""
    ranks = formula(wire_bytes=wire_bytes, **SETTING)
    last = math.floor(ranks)
    # Quoted for a ring that sends 2 |g|; the formula has 2 (N-1)/N |g|, which is one rank more.
    assert ranks - 1 == pytest.approx(quoted * 2 / wire_bytes, rel=0.001)
    wall.choose("wire-type", wire)
    put(wall, "ranks", last)
    assert not red(wall, card)
    put(wall, "ranks", last + 1)
    assert red(wall, card) and f"wall at {last} ranks" in wall.text(f"card-{card}")
    assert "past the limit" in wall.text(f"card-{card}")


def test_the_preset_says_what_the_planner_says(wall: Any) -> None:
    """B13: 70 billion parameters on 256 ranks."""
    wall.click("apply")
    compute = formulas.compute_seconds(70e9, 1048576, 256, 989, 0.5)
    comm = formulas.comm_seconds(70e9, 256, 2, 400e9)
    assert f"{compute:.2f} s" in wall.text("card-compute") and f"{1000 * comm:.0f} ms" in wall.text("card-comm")
    assert "1.12 TB" in wall.text("card-memory") and red(wall, "memory")
    assert not red(wall, "comm") and not red(wall, "step")
    assert wall.text("verdict") == "The backward pass hides all communication, up to 849 ranks."


def test_the_other_preset_is_past_the_wall(wall: Any) -> None:
    wall.choose("preset", "LLaMA-70B / 2048 H100")
    wall.click("apply")
    assert wall.at("ranks").get_attribute("value") == "2048"
    assert red(wall, "comm") and red(wall, "comm-step") and red(wall, "step")
    assert wall.text("verdict") == "Past the wall of 849 ranks: at 2048, a rank waits for 48.5 % of a step."


def test_sliders_move_the_numbers(wall: Any) -> None:
    from selenium.webdriver import Keys

    slider = wall.at("ranks-slider")
    slider.send_keys(Keys.END)
    assert wall.at("ranks").get_attribute("value") == "16384" and red(wall, "comm")
    slider.send_keys(Keys.HOME)
    assert wall.at("ranks").get_attribute("value") == "1" and not red(wall, "comm")
    for _ in range(10):
        slider.send_keys(Keys.PAGE_UP)
    assert int(wall.at("ranks").get_attribute("value")) > 1
    assert slider.get_attribute("aria-valuetext") == wall.at("ranks").get_attribute("value")
    put(wall, "ranks", 128)
    assert int(slider.get_attribute("value")) == 500


def test_a_number_out_of_range_is_named(wall: Any) -> None:
    put(wall, "mfu", 0)
    assert wall.text("invalid") == "Out of range: Share of peak reached, %: 1 to 100"
    assert wall.at("mfu").get_attribute("aria-invalid") == "true"
    put(wall, "mfu", 50)
    assert wall.text("invalid") == "" and wall.at("mfu").get_attribute("aria-invalid") == "false"


def test_the_curve_marks_the_chosen_ranks(wall: Any) -> None:
    put(wall, "ranks", 300)
    texts = [text.text for text in wall.driver.find_elements("css selector", "#curve text")]
    assert {"compute", "communication", "300 ranks", "16384"} <= set(texts)


@pytest.mark.parametrize("theme_clicks", [1, 2])
def test_accessible(theme_clicks: int, wall: Any) -> None:
    for _ in range(theme_clicks):
        wall.click("theme")
    put(wall, "ranks", 2048)
    put(wall, "mfu", 0)
    assert wall.violations() == []
