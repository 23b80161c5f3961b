"""The ring's page, operated in a real browser; traces as short JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ringdp.tools.pages import ring_page
from ringdp.tools.pages.ring_page import packed
from ringdp.tools.plan_viewer.play import play
from ringdp.tools.plan_viewer.schemes import SCHEMES


def test_a_trace_by_its_scheme_and_size() -> None:
    book = packed([play("direct", 2, 2), play("direct", 3, 3), play("tree", 2, 2)])
    assert {name: sorted(sizes) for name, sizes in book.items()} == {"direct": ["2x2", "3x3"], "tree": ["2x2"]}


def test_frames_word_for_word() -> None:
    trace = json.loads(json.dumps(packed([play("direct", 2, 2)])))["direct"]["2x2"]
    assert trace == {
        "bytes": 4,
        "rounds": 2,
        "inputs": [[10, 11], [20, 21]],
        "frames": [
            [
                1,
                "sums",
                [[0, 1, "link", [1], [0], 4], [1, 0, "link", [0], [1], 4]],
                [[0, 0, [0, 1], 30], [1, 1, [0, 1], 32]],
                [4, 4],
                [12, 12],
            ],
            [
                2,
                "results",
                [[0, 1, "link", [0], [0, 1], 4], [1, 0, "link", [1], [0, 1], 4]],
                [[0, 1, [0, 1], 32], [1, 0, [0, 1], 30]],
                [8, 8],
                [12, 12],
            ],
        ],
    }


def test_fractions_stay() -> None:
    trace = play("direct", 2, 2)
    trace.inputs[0][0] = 0.5
    assert packed([trace])["direct"]["2x2"]["inputs"][0] == [0.5, 11]


MAX_BYTES = 1_500_000


@pytest.fixture(scope="module")
def page() -> str:
    return ring_page.page(play("ring/rotated", 4, 4))


@pytest.fixture
def ring(opened: Any, page: str) -> Any:
    return opened(page)


def values(ring: Any) -> list[list[str]]:
    """What the table says each rank holds."""
    return [[cell.splitlines()[0] for cell in row[1:-2]] for row in ring.table("held")]


def counters(ring: Any) -> list[tuple[int, int]]:
    """By rank: bytes sent, bytes in memory."""
    return [(int(row[-2]), int(row[-1])) for row in ring.table("held")]


def held(ring: Any, rank: int, chunk: int) -> tuple[str, ...]:
    """Value, whose contributions, and state of one chunk."""
    cell = ring.at(f"held-{rank}-{chunk}")
    return (*cell.text.splitlines(), cell.get_attribute("class").split()[0])


def test_one_small_file_that_loads_nothing(page: str) -> None:
    assert len(page.encode()) < MAX_BYTES
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    assert "src=" not in page and "<link" not in page


def test_ids_are_unique(page: str, ring: Any) -> None:
    ids = ring.driver.execute_script("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert sorted(ids) == sorted(set(ids))


def test_the_walkthrough_of_four_ranks(ring: Any) -> None:
    """B12 and E4: each round by a click on Step; then the results."""
    assert values(ring) == [[str(10 * (r + 1) + c) for c in range(4)] for r in range(4)]
    ring.click("step")
    assert ring.text("where") == "Step 1 of 6, round 1 of 6: summing"
    assert [held(ring, r, (r + 3) % 4) for r in range(4)] == [
        ("56", "3+0", "partial"),
        ("30", "0+1", "partial"),
        ("52", "1+2", "partial"),
        ("74", "2+3", "partial"),
    ]
    for _ in range(2):
        ring.click("step")
    assert [held(ring, r, (r + 1) % 4) for r in range(4)] == [
        (value, "all", "done") for value in ("104", "108", "112", "100")
    ]
    for _ in range(3):
        ring.click("step")
    assert ring.text("where") == "Step 6 of 6, round 6 of 6: spreading results"
    assert values(ring) == [["100", "104", "108", "112"]] * 4
    assert [sent for sent, _ in counters(ring)] == [24] * 4 and ring.text("sent-all") == "96"


def test_step_back_and_reset(ring: Any) -> None:
    for name in ("step", "step", "back"):
        ring.click(name)
    assert ring.text("where").startswith("Step 1 of 6") and held(ring, 0, 3)[0] == "56"
    ring.click("reset")
    assert ring.text("where").startswith("Start") and held(ring, 0, 3) == ("13", "0", "raw")
    ring.click("back")
    assert ring.text("where").startswith("Start")


def test_keys(ring: Any) -> None:
    ring.press("ARROW_RIGHT", "ARROW_RIGHT", "ARROW_RIGHT", "ARROW_LEFT")
    assert ring.text("where").startswith("Step 2 of 6")
    ring.press("HOME")
    assert ring.text("where").startswith("Start")


def test_the_order_of_the_focus(ring: Any) -> None:
    order = []
    for _ in range(10):
        ring.press("TAB")
        order.append(ring.focused())
    assert order == [
        *("tab-ring", "theme", "scheme", "ring-ranks", "ring-chunks"),
        *("reset", "back", "step", "play", "speed"),
    ]
    ring.at("step").send_keys(" ")
    assert ring.text("where").startswith("Step 1 of 6") and ring.focused() == "step"


def test_play_runs_to_the_end_and_can_be_paused(ring: Any) -> None:
    ring.choose("scheme", "direct")
    ring.at("speed").send_keys(end_key())
    assert ring.at("speed").get_attribute("aria-valuetext") == "4 steps per second"
    ring.click("play")
    assert ring.text("play") == "Pause"
    ring.wait_for(lambda: ring.text("where").startswith("Step 2 of 2"))
    assert ring.text("play") == "Play" and ring.at("play").get_attribute("aria-pressed") == "false"
    ring.click("step")
    ring.click("play")
    assert ring.text("play") == "Pause" and ring.text("where").startswith(("Start", "Step 1"))
    ring.click("reset")
    assert ring.text("play") == "Play" and ring.text("where").startswith("Start")


def end_key() -> str:
    from selenium.webdriver import Keys

    return Keys.END


@pytest.mark.parametrize("name", SCHEMES)
def test_every_algorithm_ends_with_the_sum(name: str, ring: Any) -> None:
    trace = play(name, 3, 6)
    last = trace.frames[-1]
    ring.choose("scheme", name)
    ring.choose("ring-ranks", "3")
    ring.choose("ring-chunks", "6")
    for _ in trace.frames:
        ring.click("step")
    assert values(ring) == [[f"{value:g}" for value in row] for row in trace.results]
    assert counters(ring) == list(zip(last.sent, last.memory, strict=True))
    assert SCHEMES[name].note in ring.text("about")
    assert len(ring.text("moves").splitlines()) == len(last.moves)


def test_a_page_opens_with_what_it_was_made_for(opened: Any) -> None:
    ring = opened(ring_page.page(play("tree", 9, 3)))
    assert ring.at("ring-ranks").get_attribute("value") == "9"
    assert ring.at("scheme").get_attribute("value") == "tree"
    assert values(ring)[8] == ["90", "91", "92"]
    cells = ring.driver.find_elements("css selector", "#picture rect.raw")
    assert len(cells) == 27 and {float(cell.get_attribute("width")) for cell in cells} == {10.0}  # crowded: no values


def test_themes(ring: Any) -> None:
    light = ring.background()
    ring.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    ring.wait_for(lambda: ring.background() != light)
    dark = ring.background()
    ring.click("theme")
    assert ring.text("theme-now") == "light" and ring.background() == light
    ring.click("theme")
    assert ring.text("theme-now") == "dark" and ring.background() == dark
    ring.click("theme")
    assert ring.text("theme-now") == "as the system"


@pytest.mark.parametrize("theme_clicks", [1, 2])
def test_accessible(theme_clicks: int, ring: Any) -> None:
    for _ in range(theme_clicks):
        ring.click("theme")
    for _ in range(3):
        ring.click("step")
    assert ring.violations() == []
