"""Buffers by chunk: places, members of an arena, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from ringdp.playback.memory import Cell, Memory, PlaybackError


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
