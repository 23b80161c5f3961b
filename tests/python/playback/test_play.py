"""Played-back plans: whole sums on all ranks, the recorder's own rounds and bytes, the textbook's schedule."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")

from ringdp.playback.memory import PlaybackError
from ringdp.playback.play import Player, inputs, play
from ringdp.playback.schemes import SCHEMES, hosts_of, record


def player_of(name: str, ranks: int, plans: list[dict[str, Any]]) -> Player:
    scheme = SCHEMES[name]
    return Player(plans, inputs(ranks, ranks), scheme.chunk_bytes, hosts_of(scheme, ranks))


@pytest.mark.parametrize("chunks", [1, 4, 7])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("name", SCHEMES)
def test_sums_rounds_and_bytes(name: str, ranks: int, chunks: int) -> None:
    trace = play(name, ranks, chunks)
    expected = [sum(column) for column in zip(*trace.inputs, strict=True)]
    assert trace.results == [expected] * ranks
    totals = [plan["totals"] for plan in record(SCHEMES[name], ranks, chunks)]
    assert trace.rounds == max(t["rounds"] for t in totals)
    assert sorted({frame.round for frame in trace.frames if frame.round}) == list(range(1, trace.rounds + 1))
    if trace.frames:
        assert list(trace.frames[-1].sent) == [t["bytes_sent"] for t in totals]
        assert list(trace.frames[-1].memory) == [t["memory_read"] + t["memory_written"] for t in totals]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_rotated_ring_is_the_textbook_s(ranks: int) -> None:
    """After round s < N rank r holds the sum of ranks r-s..r of chunk r-s; then results go round."""
    trace = play("ring/rotated", ranks, ranks)
    assert len(trace.frames) == trace.rounds == 2 * (ranks - 1)
    for s, frame in enumerate(trace.frames[: ranks - 1], 1):
        held = {h.rank: (h.chunk, h.ranks) for h in frame.held}
        assert held == {
            r: ((r - s) % ranks, tuple((r - back) % ranks for back in range(s, -1, -1))) for r in range(ranks)
        }
    assert all(trace.phase(frame) == "sums" for frame in trace.frames[: ranks - 1])
    assert all(trace.phase(frame) == "results" for frame in trace.frames[ranks - 1 :])


@pytest.mark.parametrize("name", [name for name in SCHEMES if name not in ("ring/rotated", "tree")])
def test_plans_in_rank_order_sum_in_rank_order(name: str) -> None:
    trace = play(name, 5, 5)
    finished = [held for frame in trace.frames for held in frame.held if len(held.ranks) == 5]
    assert finished and all(held.ranks == (0, 1, 2, 3, 4) for held in finished)


def test_inputs_show_which_ranks_are_in_a_sum() -> None:
    assert inputs(2, 3) == [[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]]


def test_a_lost_message_is_a_deadlock() -> None:
    plans = record(SCHEMES["direct"], 3, 3)
    lane = next(lane for lane in plans[1]["lanes"] if lane["name"] == "send>2")
    lane["steps"].clear()
    with pytest.raises(PlaybackError, match=r"nothing can move any more: rank \d, lane \d, step \d \(\w+\)"):
        player_of("direct", 3, plans).run()


def test_a_contribution_that_is_left_out_is_found() -> None:
    plans = record(SCHEMES["direct"], 3, 3)
    fold = next(lane for lane in plans[0]["lanes"] if lane["name"] == "fold")
    fold["steps"][0]["srcs"].pop()
    player = player_of("direct", 3, plans)
    player.run()
    with pytest.raises(PlaybackError, match=r"rank 0 ends with ranks \(0, 1\) of chunk 0"):
        player.results()


def test_a_contribution_that_counts_twice_is_found() -> None:
    plans = json.loads(json.dumps(record(SCHEMES["direct"], 3, 3)))
    fold = next(lane for lane in plans[0]["lanes"] if lane["name"] == "fold")
    fold["steps"][0]["srcs"][1] = fold["steps"][0]["srcs"][0]
    with pytest.raises(PlaybackError, match=r"chunk 0 of ranks \(0,\)"):
        player_of("direct", 3, plans).run()
