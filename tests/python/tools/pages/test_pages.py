"""The pages, operated in a real browser: a run's report, the ring, the scaling calculator."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from example_run import plain_run, run
from ringdp.tools.pages import report_page, ring_page, wall_page
from ringdp.tools.pages.document import document
from ringdp.tools.pages.ring_page import packed
from ringdp.tools.plan_viewer.play import play
from ringdp.tools.plan_viewer.schemes import SCHEMES
from ringdp.tools.planner import formulas


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
def test_the_report_page_is_accessible(theme_clicks: int, opened: Any) -> None:
    page = opened(report_page.page(run()))
    for _ in range(theme_clicks):
        page.click("theme")
    assert page.violations() == []


# The ring's page, operated in a real browser; traces as short JSON.


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
def test_the_ring_page_is_accessible(theme_clicks: int, ring: Any) -> None:
    for _ in range(theme_clicks):
        ring.click("theme")
    for _ in range(3):
        ring.click("step")
    assert ring.violations() == []


# The scaling calculator, operated in a real browser against the planner's formulas in Python.

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
def test_the_wall_page_is_accessible(theme_clicks: int, wall: Any) -> None:
    for _ in range(theme_clicks):
        wall.click("theme")
    put(wall, "ranks", 2048)
    put(wall, "mfu", 0)
    assert wall.violations() == []
