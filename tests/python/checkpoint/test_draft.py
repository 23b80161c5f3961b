"""Before a save: the work is dealt out, a copy is a copy, and ranks that mean different saves are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import HERE
from ringdp.checkpoint.draft import draft
from ringdp.checkpoint.ranks import ranks_of
from states import Sharded, bits_of, odd_state


def drafted(folder: str, keep: object) -> list:
    """(stretch, bits) of this rank's blocks; `keep` is this rank's own."""
    holder = Sharded(odd_state(2), HERE.rank, HERE.size, 4)
    agreed = draft(Path(folder), holder, None, HERE.rank, keep[HERE.rank], ranks_of(None))
    assert agreed.extras == list(range(HERE.size))
    assert len(agreed.rng) == HERE.size
    return [(stretch, bits_of(tensor)) for stretch, tensor in agreed.blocks.items()]


def test_all_blocks_together_are_the_state(trio, tmp_path):
    state = odd_state(2)
    blocks = [block for blocks in trio.run(drafted, str(tmp_path), [2, 2, 2]) for block in blocks]
    for stretch, bits in blocks:
        flat = state[stretch.spec.kind, stretch.spec.name].reshape(-1)
        assert bits == bits_of(flat[stretch.offset : stretch.stop])
    assert sum(stretch.length for stretch, _ in blocks) == sum(tensor.numel() for tensor in state.values())
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("keep", [[2, 2, 3], [2, None, 2]])
def test_ranks_that_mean_different_saves_are_named(trio, keep, tmp_path):
    odd = next(rank for rank in range(3) if keep[rank] != 2)
    errors = {outcome.error for outcome in trio.attempt(drafted, str(tmp_path), keep)}
    assert errors == {f"CheckpointError: the ranks differ in keep: rank 0 has 2, rank {odd} {keep[odd]}"}


def test_a_copy_does_not_change_with_the_state(tmp_path):
    holder = Sharded(odd_state(2), 0, 1, 1)
    agreed = draft(tmp_path, holder, None, None, 2, ranks_of(None))
    before = {stretch: bits_of(tensor) for stretch, tensor in agreed.blocks.items()}
    copied = agreed.copy()
    for piece in holder.held:
        piece.tensor.zero_()
    assert {stretch: bits_of(tensor) for stretch, tensor in copied.blocks.items()} == before
    assert {stretch: bits_of(tensor) for stretch, tensor in agreed.blocks.items()} != before
