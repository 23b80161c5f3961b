"""Blocks are written and read back, and every damage of them is found."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ringdp
import torch
import torch.distributed.checkpoint as dcp
from ringdp.checkpoint import CheckpointError, Spec, Stretch
from ringdp.checkpoint.blocks import INDEX, blocks_of, read_pieces, whole_of, write_blocks, write_index
from ringdp.checkpoint.manifest import Manifest, read_manifest
from ringdp.checkpoint.piece import Piece, sha256_of
from states import Sharded, assembled, assert_same_bits, bits_of, layout, odd_state

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
    with pytest.raises(CheckpointError, match=r"__2_0\.distcp, which rank 2 has written, is not visible to rank 0"):
        write_index(tmp_path, everyones)
    assert not (tmp_path / INDEX).exists()


@pytest.fixture
def saved(tmp_path, monkeypatch) -> Path:
    """A checkpoint of small blocks."""
    monkeypatch.setattr("ringdp.checkpoint.saving.BLOCK_BYTES", 100)
    return ringdp.checkpoint.save(tmp_path, Sharded(odd_state(1), 0, 1, seed=4))


def read_whole(path: Path, manifest: Manifest | None = None) -> dict:
    manifest = manifest or read_manifest(path)
    return assembled([read_pieces(path, manifest, whole_of(manifest.specs))])


def test_whole_tensors_come_back(saved):
    assert_same_bits(read_whole(saved), odd_state(1))


def test_another_order_than_the_stored_one_can_be_wanted(tmp_path):
    for seed in (4, 5):  # stored row-major, stored transposed
        path = ringdp.checkpoint.save(tmp_path, Sharded(odd_state(1), 0, 1, seed))
        manifest = read_manifest(path)
        assert any(spec.order for spec in manifest.specs) == (seed == 5)
        for other in (4, 5):
            holder = Sharded({}, 0, 1, other)
            wanted = list(holder.wants(manifest.specs, {}))
            pieces = read_pieces(path, manifest, wanted)
            assert [piece.stretch for piece in pieces] == wanted
            assert_same_bits(assembled([pieces]), odd_state(1))


@pytest.mark.parametrize("seed", range(5))
def test_any_stretches_come_back_in_the_order_they_were_wanted(saved, seed):
    manifest = read_manifest(saved)
    wanted = [stretch for spec in reversed(manifest.specs) for rank in layout(spec, 3, seed) for stretch in rank]
    pieces = read_pieces(saved, manifest, wanted)
    assert [piece.stretch for piece in pieces] == wanted
    for piece in pieces:
        expected = odd_state(1)[piece.kind, piece.name].reshape(-1)[piece.offset : piece.stretch.stop]
        assert bits_of(piece.tensor) == bits_of(expected)


def test_a_flipped_bit_is_noticed_wherever_it_is(saved):
    manifest = read_manifest(saved)
    for name in manifest.files:
        path = saved / name
        good = path.read_bytes()
        for at in range(0, len(good), max(1, len(good) // 40)):
            path.write_bytes(good[:at] + bytes([good[at] ^ 16]) + good[at + 1 :])
            try:
                # Some bytes of a file mean nothing (padding, names): then every bit of every tensor is still right.
                assert_same_bits(read_whole(saved, manifest), odd_state(1))
            except CheckpointError as error:
                assert str(path) in str(error)
        path.write_bytes(good)


def test_a_flipped_bit_of_the_values_is_an_error(saved):
    manifest = read_manifest(saved)
    path = saved / "__0_0.distcp"
    value = bits_of(odd_state(1)["exp_avg", "out.bias"])[:8]
    good = path.read_bytes()
    at = good.index(value)
    path.write_bytes(good[:at] + bytes([value[0] ^ 1]) + good[at + 1 :])
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp") as caught:
        read_whole(saved, manifest)
    assert "corrupted" in str(caught.value)


def test_the_index_is_hashed_before_it_is_unpickled(saved):
    manifest = read_manifest(saved)
    (saved / INDEX).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(CheckpointError, match=r"\.metadata is corrupted: its sha256"):
        read_whole(saved, manifest)


def forged(path: Path, index: bytes) -> Manifest:
    """The manifest that goes with another index, as whoever wrote that one writes it."""
    (path / INDEX).write_bytes(index)
    return replace(read_manifest(path), index_sha256=hashlib.sha256(index).hexdigest())


class Call:
    """A pickle that makes a folder when it is read."""

    def __init__(self, name: str, function: Any = os.mkdir) -> None:
        self.call = function, (name,)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("function", [os.mkdir, eval, torch.load, torch.hub.load, importlib.import_module])
def test_a_forged_index_runs_nothing(saved, function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    harm = "__import__('os').mkdir('harm')" if function is eval else "harm"
    size = (saved / INDEX).stat().st_size
    index = pickle.dumps(Call(harm, function))
    manifest = forged(saved, index + bytes(size - len(index)))  # as long as the manifest says
    with pytest.raises(CheckpointError, match=r"\.metadata is not an index .*names .*nothing of it was run"):
        read_whole(saved, manifest)
    assert not (tmp_path / "harm").exists()


def test_an_index_that_names_a_file_of_others_is_refused(saved, tmp_path):
    real = pickle.loads((saved / INDEX).read_bytes())
    for info in real.storage_data.values():
        info.relative_path = "../secret"
    (tmp_path / "secret").write_text("x")
    manifest = read_manifest(saved)
    index = pickle.dumps(real)
    (saved / INDEX).write_bytes(index)
    with pytest.raises(CheckpointError, match="names ../secret, which is not a file of this checkpoint"):
        read_whole(saved, replace(manifest, index_sha256=hashlib.sha256(index).hexdigest()))


def test_what_the_checkpoint_does_not_hold_is_not_invented(saved):
    manifest = read_manifest(saved)
    spec = manifest.specs[0]
    with pytest.raises(CheckpointError, match="does not hold elements"):
        read_pieces(saved, manifest, [Stretch(spec, 0, spec.elements + 1)])
