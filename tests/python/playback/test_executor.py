"""ringdp/playback/executor.py: what really ran is what was played back."""

import pytest
from ringdp.playback.executor import execute
from ringdp.playback.play import inputs, play

pytest.importorskip("torch")


@pytest.mark.parametrize(("scheme", "order"), [("ring/rotated", "rotated"), ("ring", "rank")])
def test_the_executor_ends_with_what_is_played(scheme, order):
    assert execute(inputs(3, 3), order)["results"] == play(scheme, 3, 3).results == [[60.0, 63.0, 66.0]] * 3


def test_rounds_and_bytes_are_those_of_the_textbooks_ring():
    trace, ran = play("ring/rotated", 4, 4), execute(inputs(4, 4), "rotated")
    assert tuple(ran["bytes_sent"]) == trace.frames[-1].sent == (24,) * 4
    assert max(ran["rounds"]) == trace.rounds == 6
