"""Plans played back: what buffers hold, what moves, and that the executor does the same; schemes and traces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ringdp.tools.plan_viewer.play import Cell, Memory, PlaybackError, Player, execute, inputs, play
from ringdp.tools.plan_viewer.schemes import SCHEMES, hosts_of, record
from ringdp.tools.plan_viewer.trace import LINK, Frame, Held, Move, Trace, chunk_name, state_of


def ref(space: str, index: int = 0, offset: int = 0, size: int = 4, stage: int = 0) -> dict[str, Any]:
    return {"space": space, "index": index, "offset": offset, "bytes": size, "stage": stage}


def memory() -> Memory:
    return Memory([[r * 10.0, r * 10.0 + 1] for r in range(4)], 4, hosts=[0, 2])


def test_input_and_output_are_one_tensor() -> None:
    held = memory()
    held.store(1, ref("output", offset=4), [Cell(1, (0, 1), 99.0)])
    assert [cell.value for cell in held.load(1, ref("input", size=8))] == [10.0, 99.0]
    assert [cell.value for cell in held.tensor(1)] == [10.0, 99.0]


def test_members_are_counted_within_their_host() -> None:
    held = memory()
    assert held.owner(3, ref("slot", index=0)) == 2
    assert held.load(3, ref("peer input", index=1))[0].value == 30.0
    held.store(2, ref("slot", index=0), [Cell(0, (2,), 20.0)])
    assert held.load(3, ref("slot", index=0))[0].value == 20.0


def test_stages_take_turns_in_two_slots() -> None:
    held = memory()
    held.store(0, ref("slot", stage=0), [Cell(0, (0,), 1.0)])
    held.store(0, ref("slot", stage=1), [Cell(0, (0,), 2.0)])
    assert held.load(0, ref("slot", stage=2))[0].value == 1.0


def test_what_was_never_written_cannot_be_read() -> None:
    with pytest.raises(PlaybackError, match="rank 0 reads chunk 3 of scratch before it is written"):
        memory().load(0, ref("scratch", offset=12))


@pytest.mark.parametrize(("offset", "size"), [(2, 4), (0, 6)])
def test_only_whole_chunks_move(offset: int, size: int) -> None:
    with pytest.raises(PlaybackError, match="no whole chunks of 4"):
        memory().load(0, ref("input", offset=offset, size=size))


@pytest.mark.parametrize("other", [Cell(1, (1,), 1.0), Cell(0, (0, 1), 1.0)])
def test_a_sum_is_of_one_chunk_and_of_different_ranks(other: Cell) -> None:
    with pytest.raises(PlaybackError):
        _ = Cell(0, (0,), 1.0) + other


def test_a_sum_keeps_the_order() -> None:
    assert Cell(2, (3,), 1.5) + Cell(2, (0, 1), 2.0) == Cell(2, (3, 0, 1), 3.5)


@pytest.mark.parametrize(("scheme", "order"), [("ring/rotated", "rotated"), ("ring", "rank")])
def test_the_executor_ends_with_what_is_played(scheme, order):
    assert execute(inputs(3, 3), order)["results"] == play(scheme, 3, 3).results == [[60.0, 63.0, 66.0]] * 3


def test_rounds_and_bytes_are_those_of_the_textbooks_ring():
    trace, ran = play("ring/rotated", 4, 4), execute(inputs(4, 4), "rotated")
    assert tuple(ran["bytes_sent"]) == trace.frames[-1].sent == (24,) * 4
    assert max(ran["rounds"]) == trace.rounds == 6


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
    channel = next(channel for channel in plans[1]["channels"] if channel["name"] == "send>2")
    channel["steps"].clear()
    with pytest.raises(PlaybackError, match=r"nothing can move any more: rank \d, channel \d, step \d \(\w+\)"):
        player_of("direct", 3, plans).run()


def test_a_contribution_that_is_left_out_is_found() -> None:
    plans = record(SCHEMES["direct"], 3, 3)
    fold = next(channel for channel in plans[0]["channels"] if channel["name"] == "fold")
    fold["steps"][0]["srcs"].pop()
    player = player_of("direct", 3, plans)
    player.run()
    with pytest.raises(PlaybackError, match=r"rank 0 ends with ranks \(0, 1\) of chunk 0"):
        player.results()


def test_a_contribution_that_counts_twice_is_found() -> None:
    plans = json.loads(json.dumps(record(SCHEMES["direct"], 3, 3)))
    fold = next(channel for channel in plans[0]["channels"] if channel["name"] == "fold")
    fold["steps"][0]["srcs"][1] = fold["steps"][0]["srcs"][0]
    with pytest.raises(PlaybackError, match=r"chunk 0 of ranks \(0,\)"):
        player_of("direct", 3, plans).run()


# The schemes that can be shown: every plan of the recorder, asked for as its name says.

RECORDED_AS = {"arena/one-shot": "arena", "arena/one-pass": "one pass"}


@pytest.mark.parametrize("name", SCHEMES)
def test_the_recorder_knows_it_by_this_name(name: str) -> None:
    plans = record(SCHEMES[name], 4, 4)
    assert [plan["rank"] for plan in plans] == [0, 1, 2, 3]
    assert {plan["algorithm"] for plan in plans} == {RECORDED_AS.get(name, name)}


def test_an_arena_in_stages_has_owners_and_one_shot_has_none() -> None:
    folds = {
        name: [
            [step["bytes"] for channel in plan["channels"] for step in channel["steps"] if step["verb"] == "fold"]
            for plan in record(SCHEMES[name], 4, 4)
        ]
        for name in ("arena/one-shot", "arena", "arena/one-pass")
    }
    assert folds == {"arena/one-shot": [[16]] * 4, "arena": [[4]] * 4, "arena/one-pass": [[128]] * 4}


def test_hosts_of_two_ranks() -> None:
    assert hosts_of(SCHEMES["hierarchy"], 5) == [0, 2, 4]
    assert hosts_of(SCHEMES["ring"], 5) == [0]


# What a trace says of its frames: states, phases, owners, what is held when.

SUM, RESULT = Held(1, 0, (0, 1), 30.0), Held(0, 0, (0, 1), 30.0)
TRACE = Trace(
    scheme="ring",
    ranks=2,
    chunks=1,
    chunk_bytes=4,
    inputs=[[10.0], [20.0]],
    frames=[
        Frame(1, (Move(0, 1, LINK, (0,), (0,), 4),), (SUM,), (4, 0), (0, 12)),
        Frame(2, (Move(1, 0, LINK, (0,), (0, 1), 4),), (RESULT,), (4, 4), (0, 12)),
    ],
    results=[[30.0], [30.0]],
    rounds=2,
)


def test_states() -> None:
    assert [state_of(n, 3) for n in (1, 2, 3)] == ["raw", "partial", "done"]
    assert TRACE.state(SUM) == "done"


def test_phases() -> None:
    assert [TRACE.phase(frame) for frame in TRACE.frames] == ["sums", "results"]


def test_what_is_held_after_each_frame() -> None:
    assert TRACE.values(0) == [[10.0], [20.0]]
    assert TRACE.values(1) == [[10.0], [30.0]]
    assert TRACE.values(2) == [[30.0], [30.0]]


def test_the_owner_is_who_finished_first() -> None:
    assert TRACE.owned() == {1: [SUM]}


def test_names() -> None:
    assert [chunk_name(c) for c in (0, 25, 26)] == ["a", "z", "26"]
