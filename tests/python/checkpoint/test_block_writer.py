"""What a rank writes is a part of a DCP checkpoint, which torch's own reader reads."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ringdp.checkpoint import CheckpointError, Spec, Stretch
from ringdp.checkpoint.block_writer import INDEX, blocks_of, write_blocks, write_index
from ringdp.checkpoint.piece import Piece, sha256_of

SPEC = Spec("exp_avg", "w", (2, 5), "float32")
FLAT = torch.arange(10.0)
SHARES = [[Stretch(SPEC, 0, 4)], [], [Stretch(SPEC, 4, 3), Stretch(SPEC, 7, 3)]]


def test_a_share_is_cut_out_of_the_pieces_without_a_copy():
    first, second = FLAT[:4].clone(), FLAT[4:].clone()
    pieces = [Piece("exp_avg", "w", (2, 5), 0, first), Piece("exp_avg", "w", (2, 5), 4, second)]
    blocks = blocks_of(pieces, [Stretch(SPEC, 1, 2), Stretch(SPEC, 7, 3)])
    assert {block.offset: tensor.tolist() for block, tensor in blocks.items()} == {1: [1.0, 2.0], 7: [7.0, 8.0, 9.0]}
    assert blocks[Stretch(SPEC, 7, 3)].data_ptr() == second[3:].data_ptr()


def written(folder) -> list:
    parts = [{block: FLAT[block.offset : block.stop] for block in share} for share in SHARES]
    return [write_blocks(folder, rank, blocks) for rank, blocks in enumerate(parts)]


def test_torch_reads_what_ranks_have_written(tmp_path):
    everyones = written(tmp_path)
    write_index(tmp_path, everyones)
    found = {"exp_avg/w": torch.zeros(10)}
    dcp.load(found, storage_reader=dcp.FileSystemReader(tmp_path), no_dist=True)
    assert found["exp_avg/w"].tolist() == FLAT.tolist()
    assert [each.files for each in everyones] == [
        {f"__{rank}_0.distcp": (tmp_path / f"__{rank}_0.distcp").stat().st_size} for rank in range(3)
    ]
    assert {block: digest for each in everyones for block, digest in each.hashes.items()} == {
        block: sha256_of(FLAT[block.offset : block.stop]) for share in SHARES for block in share
    }


def test_a_file_that_rank_0_cannot_see_is_named(tmp_path):
    everyones = written(tmp_path)
    (tmp_path / "__2_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"__2_0\.distcp, which rank 2 has written, is not there for rank 0"):
        write_index(tmp_path, everyones)
    assert not (tmp_path / INDEX).exists()
