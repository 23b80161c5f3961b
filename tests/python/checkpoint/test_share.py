"""Every element is written once, by a rank that holds it, and replicas are dealt out evenly."""

from __future__ import annotations

from collections import Counter

import pytest
from ringdp.checkpoint import CheckpointError, Spec, Stretch
from ringdp.checkpoint import share as subject
from ringdp.checkpoint.share import BLOCK_BYTES, share, specs_of
from states import SHAPES, layout

SPECS = [Spec(kind, name, shape, str(dtype)[6:]) for (kind, name), (shape, dtype) in SHAPES.items()]


def held_by(size: int, seed: int) -> list[list[Stretch]]:
    return [[stretch for spec in SPECS for stretch in layout(spec, size, seed)[rank]] for rank in range(size)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_element_is_written_once_by_a_rank_that_holds_it(size, seed, monkeypatch):
    monkeypatch.setattr(subject, "BLOCK_BYTES", 64)
    held = held_by(size, seed)
    written = Counter()
    for rank, blocks in enumerate(share(held)):
        for block in blocks:
            assert 0 < block.bytes <= 64
            around = [have for have in held[rank] if have.spec == block.spec]
            assert any(have.offset <= block.offset and block.stop <= have.stop for have in around)
            written.update((block.spec, at) for at in range(block.offset, block.stop))
    assert written == Counter((spec, at) for spec in SPECS for at in range(spec.elements))
    assert specs_of(held) == sorted(SPECS)


def test_replicas_are_dealt_out_evenly():
    spec = Spec("parameter", "w", (8 * BLOCK_BYTES,), "uint8")
    loads = [sum(block.bytes for block in blocks) for blocks in share([[Stretch(spec, 0, spec.elements)]] * 4)]
    assert loads == [2 * BLOCK_BYTES] * 4


def test_replicas_fill_up_what_uneven_shards_leave():
    alone, replica = Spec("a", "w", (BLOCK_BYTES,), "uint8"), Spec("b", "w", (BLOCK_BYTES,), "uint8")
    mine, ours = Stretch(alone, 0, BLOCK_BYTES), Stretch(replica, 0, BLOCK_BYTES)
    assert share([[mine, ours], [ours]]) == [[mine], [ours]]


def test_a_piece_offered_twice_by_one_rank_is_written_once():
    spec = Spec("parameter", "w", (10,), "float32")
    assert share([[Stretch(spec, 0, 10), Stretch(spec, 3, 4)]]) == [
        [Stretch(spec, 0, 3), Stretch(spec, 3, 4), Stretch(spec, 7, 3)]
    ]


def test_elements_that_no_rank_holds_are_named():
    spec = Spec("exp_avg", "w", (10,), "float32")
    with pytest.raises(CheckpointError, match=r"no rank holds elements 4 to 6 of exp_avg/w \(float32 \[10\]\)"):
        share([[Stretch(spec, 0, 4)], [Stretch(spec, 6, 4)]])


def test_ranks_that_disagree_about_a_tensor_are_named():
    here, there = Spec("exp_avg", "w", (10,), "float32"), Spec("exp_avg", "w", (10,), "float64")
    with pytest.raises(CheckpointError, match=r"rank 0 has exp_avg/w \(float32 .* rank 1 has exp_avg/w \(float64"):
        share([[Stretch(here, 0, 10)], [Stretch(there, 0, 10)]])
