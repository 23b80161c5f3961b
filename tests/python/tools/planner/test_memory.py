"""Stages, activations, and what fits."""

import pytest
from ringdp.tools.planner.memory import KINDS, activation_bytes, fit, formula_text, memory, widths
from ringdp.tools.planner.question import InputError

MEMORY, FIT = KINDS
BASE = {"params": "1B", "ranks": "8"}
SHAPE = {"micro_batch": "2", "seq": "1024", "hidden": "512", "layers": "6", "heads": "8"}


@pytest.mark.parametrize(
    ("dtype", "stages"),
    [
        ("bf16", ["16P", "4P + 12P/N", "2P + 14P/N", "16P/N"]),
        ("fp32", ["16P", "8P + 8P/N", "4P + 12P/N", "16P/N"]),
    ],
)
def test_formulas_as_papers_write_them(dtype, stages):
    assert [formula_text(stage, widths(dtype)) for stage in range(4)] == stages


def test_accumulation_in_float32_costs_16_bit_models_4_bytes():
    plain, wide = (MEMORY.ask({**BASE, "fp32_accumulation": word}) for word in ("no", "yes"))
    assert wide["stage0_bytes"] - plain["stage0_bytes"] == 4e9
    assert wide["stage2_bytes"] - plain["stage2_bytes"] == 4e9 / 8
    for kind, given in ((MEMORY, BASE), (FIT, {"params": "1B", "device_gb": "80"})):
        with pytest.raises(InputError, match="in float32 already"):
            kind.ask({**given, "dtype": "fp32", "fp32_accumulation": "yes"})
    assert MEMORY.ask({**BASE, "dtype": "fp32"})["master_bytes"] == 0


def test_activations_grow_with_what_they_are_made_of():
    def size(**changes):
        shape = {"micro_batch": 2, "seq": 1024, "hidden": 512, "layers": 6, "heads": 8, **changes}
        return activation_bytes(**shape, dtype="bf16", recompute="none")

    assert size(micro_batch=4) == 2 * size() and size(layers=12) == 2 * size()
    assert size(seq=2048) > 2 * size()


def test_less_is_kept_when_more_is_computed_again():
    answers = [MEMORY.ask({**BASE, **SHAPE, "recompute": word}) for word in ("none", "scores", "full")]
    sizes = [answer["activation_bytes"] for answer in answers]
    assert sizes == sorted(sizes, reverse=True)


def test_totals_add_what_is_given():
    answer = MEMORY.ask({**BASE, **SHAPE, "largest_unit": "10M"})
    activations = answer["activation_bytes"]
    assert answer["stage0_total_bytes"] == answer["stage0_bytes"] + activations
    assert answer["stage3_transient_bytes"] == 2 * 10e6 * 2 + 10e6 * 2
    assert answer["stage3_total_bytes"] == answer["stage3_bytes"] + activations + answer["stage3_transient_bytes"]


@pytest.mark.parametrize("given", [{"seq": "1024"}, {"recompute": "full"}, {**SHAPE, "heads": ""}])
def test_activations_need_all_sizes(given):
    with pytest.raises(InputError, match=r"memory needs --.*heads"):
        MEMORY.ask({**BASE, **given})


def test_the_ranks_that_fit_do_and_one_less_does_not():
    answer = fit(7e9, 24, "bf16", "no", None, None)
    for stage in (2, 3):
        fewest = answer[f"stage{stage}_min_ranks"]
        held = [memory(7e9, n, "bf16", "no", None, "none", **dict.fromkeys(SHAPE)) for n in (fewest, fewest - 1)]
        assert held[0][f"stage{stage}_bytes"] <= 24e9 < held[1][f"stage{stage}_bytes"]
    assert "stage 2 from 10 ranks, stage 3 from 5 ranks" in answer.advice[0]
    assert "never capacity" in answer.warnings[0]


def test_a_reserve_takes_room():
    assert fit(7e9, 24, "bf16", "no", 4, None)["stage3_min_ranks"] == 6
    with pytest.raises(InputError, match="leaves nothing"):
        fit(7e9, 24, "bf16", "no", 24, None)


def test_stage_3_has_room_for_the_units_that_it_gathers():
    answer = FIT.ask({"params": "7B", "device_gb": "24", "largest_unit": "202M"})
    fewest = answer["stage3_min_ranks"]
    held = [MEMORY.ask({"params": "7B", "ranks": str(n), "largest_unit": "202M"}) for n in (fewest, fewest - 1)]
    assert held[0]["stage3_total_bytes"] <= 24e9 < held[1]["stage3_total_bytes"]
    assert answer["stage2_min_ranks"] == FIT.ask({"params": "7B", "device_gb": "24"})["stage2_min_ranks"]


def test_the_stages_are_shown_with_what_they_send():
    (table,) = MEMORY.ask(BASE).tables
    assert [row[4] for row in table.rows] == [2e9, 2e9, 2e9, 3e9]


def test_what_fits_whole_needs_no_zero():
    answer = fit(1e9, 80, "bf16", "no", None, None)
    assert answer["stage0_fits"] is True and answer["stage0_min_ranks"] == 1
    assert answer.advice == ("fits without ZeRO",) and not answer.warnings


def test_a_device_by_name():
    assert FIT.ask({"params": "7B", "device_gb": "h100"})["room_bytes"] == 80e9
