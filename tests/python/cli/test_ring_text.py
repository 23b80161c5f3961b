"""A trace as text: the first step of the worked example, word for word, and what the summary counts."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from ringdp.cli import ring_text
from ringdp.playback.play import play
from ringdp.playback.trace import DONE, PARTIAL, RAW


def plain(lines: list[ring_text.Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_the_first_step_of_four_ranks() -> None:
    assert plain(ring_text.step(play("ring/rotated", 4, 4), 1)) == [
        "step 1 of 6, round 1 of 6: sums",
        "  rank 0 -> 1            link   a         4 B  of rank 0",
        "  rank 1 -> 2            link   b         4 B  of rank 1",
        "  rank 2 -> 3            link   c         4 B  of rank 2",
        "  rank 3 -> 0            link   d         4 B  of rank 3",
        "              a      b      c      d    sent",
        "  rank 0     10     11     12    >56+    4 B",
        "  rank 1    >30+    21     22     23     4 B",
        "  rank 2     30    >52+    32     33     4 B",
        "  rank 3     40     41    >74+    43     4 B",
    ]


def test_cells_carry_their_state() -> None:
    trace = play("ring/rotated", 3, 3)
    states = [[style for _, style in line if style] for line in ring_text.step(trace, 2)[-3:]]
    assert states == [[RAW, DONE, PARTIAL], [PARTIAL, RAW, DONE], [DONE, PARTIAL, RAW]]


def test_memory_is_named_where_nothing_is_sent() -> None:
    lines = plain(ring_text.step(play("arena/one-shot", 2, 2), 1))
    assert lines[0] == "step 1 of 2, in memory: sums"
    assert lines[1] == "  rank 0 into its slot   memory a,b       8 B  of rank 0"


def test_the_summary_counts() -> None:
    lines = plain(ring_text.summary(play("ring/rotated", 4, 4), None))
    finished = ("b=104", "c=108", "d=112", "a=100")
    assert lines[:4] == [f"rank {rank} finished {what}" for rank, what in enumerate(finished)]
    assert "rounds counted   6 = 2(N-1)" in lines
    assert "bytes sent       24 24 24 24 by rank; a tensor has 16" in lines


def test_one_rank_has_nothing_to_do() -> None:
    trace = play("ring/rotated", 1, 2)
    assert trace.frames == [] and trace.results == [[10.0, 11.0]]
    assert "bytes sent       0 by rank; a tensor has 8" in plain(ring_text.summary(trace, None))


@pytest.mark.parametrize(("sent", "said"), [([2, 2], "DIFFERENT"), ([8, 8], "the same results, and as many bytes")])
def test_the_executor_is_compared(sent: list[int], said: str) -> None:
    trace = play("ring/rotated", 2, 2)
    done = {"results": trace.results, "bytes_sent": sent}
    assert said in plain(ring_text.summary(trace, done))[-1]
