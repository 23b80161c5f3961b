"""What micro_batches=M costs: figures that must agree with a counter written by hand, and with formulas."""

from __future__ import annotations

import pytest
from ringdp.tools.planner.elastic import KINDS, copies_held
from ringdp.tools.planner.question import InputError

(ELASTIC,) = KINDS


def rows(**given: str) -> dict[int, tuple]:
    table, _ = ELASTIC.ask(given).tables
    return {row[0]: row for row in table.rows}


def test_powers_of_two_send_one_sum_and_hold_log2_copies():
    found = rows(micro_batches="32", ranks="1,2,4,8,16,32")
    assert [found[n][2:5] for n in (1, 2, 4, 8, 16, 32)] == [(1, 1, held) for held in (6, 5, 4, 3, 2, 1)]


def test_a_rank_more_or_less_sends_a_few_sums():
    """The table of the design note."""
    found = rows(micro_batches="24", ranks="1-8")
    assert [round(found[n][2], 1) for n in range(1, 9)] == [1, 1, 2.3, 1, 2.2, 2, 1.4, 1]


def test_bytes_and_seconds():
    """float32: reduce half times the sums sent, and the gather."""
    four, _ = rows(micro_batches="8", ranks="4,3", params="1M", bandwidth="1MB/s").values()
    assert four[5] == 2 * 3 / 4 * 4e6 and four[6] == 1 and four[7] == pytest.approx(6.0)
    narrow = rows(micro_batches="8", ranks="4", params="1M", wire="bf16")[4]
    assert narrow[5] == (2 + 1) * 3 / 4 * 2e6, "sums of 16-bit gradients are sent in float32"
    assert rows(micro_batches="8", ranks="8", params="1M", wire="bf16")[8][5] == 2 * 7 / 8 * 2e6, "one leaf is not"


def test_copies_are_counted_in_the_order_of_the_leaves():
    assert copies_held(8, []) == 0
    assert copies_held(8, [0]) == 1
    assert copies_held(8, [0, 2, 4, 6]) == 4, "no two of them have a common parent"
    assert copies_held(8, [0, 1, 2, 3]) == 3


def test_advice():
    answer = ELASTIC.ask({"micro_batches": "4", "ranks": "2-6"})
    assert "from 5 ranks on some have no micro-batch" in " ".join(answer.advice)
    with pytest.raises(InputError, match="up to 4096"):
        ELASTIC.ask({"micro_batches": "1M"})
