"""What a trace says of its frames: states, phases, owners, what is held when."""

from __future__ import annotations

from ringdp.tools.plan_viewer.trace import LINK, Frame, Held, Move, Trace, chunk_name, state_of

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
