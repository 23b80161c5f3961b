"""The files of a checkpoint: pieces of tensors, blocks, the manifest, and their directory; every damage is found."""

from __future__ import annotations

import hashlib
import importlib
import json
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
from ringdp.checkpoint.directory import Slot, find, numbered, rename_durably, write_durably
from ringdp.checkpoint.manifest import FILE, VERSION, Manifest, read_manifest
from ringdp.checkpoint.piece import Piece, reordered, sha256_of, spec_of, whole
from states import Sharded, assembled, assert_same_bits, bits_of, layout, odd_state


def test_a_spec_describes_a_tensor():
    spec = spec_of("exp_avg", "layer.weight", torch.zeros(3, 4, dtype=torch.bfloat16))
    assert (spec.key, spec.elements, spec.torch_dtype) == ("exp_avg/layer.weight", 12, torch.bfloat16)
    assert str(spec) == "exp_avg/layer.weight (bfloat16 [3, 4])"
    assert Stretch(spec, 2, 5).bytes == 10
    assert Stretch(spec, 2, 5).stop == 7


def test_a_dtype_that_torch_lacks_is_named():
    with pytest.raises(CheckpointError, match=r"master/w has the dtype float3"):
        _ = Spec("master", "w", (1,), "float3").torch_dtype


def test_a_whole_tensor_is_taken_in_row_major_order_whatever_its_strides_are():
    tensor = torch.arange(12.0).view(3, 4).t()
    assert whole("parameter", "w", tensor).tensor.tolist() == tensor.contiguous().view(-1).tolist()


def test_a_whole_contiguous_tensor_is_not_copied():
    tensor = torch.arange(6.0).view(2, 3)
    assert whole("parameter", "w", tensor).tensor.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize(
    ("offset", "tensor"), [(0, torch.zeros(2, 3)), (5, torch.zeros(2)), (-1, torch.zeros(2)), (0, torch.zeros(7))]
)
def test_what_is_no_flat_piece_of_the_tensor_is_refused(offset, tensor):
    with pytest.raises(CheckpointError, match=r"not a flat piece of parameter/w \(float32 \[2, 3\]\)"):
        _ = Piece("parameter", "w", (2, 3), offset, tensor).stretch


def test_elements_can_be_counted_in_the_order_of_memory():
    image = torch.arange(120).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    memory = image.as_strided((120,), (1,))
    rows, order = spec_of("parameter", "w", image), (0, 2, 3, 1)
    assert reordered(image.reshape(-1), rows, order).tolist() == memory.tolist()
    stored = Piece("parameter", "w", (2, 3, 4, 5), 0, memory, order).stretch.spec
    assert stored.row_major == rows != stored
    assert reordered(memory, stored, ()).tolist() == image.reshape(-1).tolist()
    turned = (3, 0, 1, 2)
    assert reordered(memory, stored, turned).tolist() == image.permute(turned).reshape(-1).tolist()


def test_an_order_that_is_no_permutation_is_refused():
    with pytest.raises(CheckpointError, match=r"has the order \[0, 0\], not a permutation"):
        _ = Piece("parameter", "w", (2, 3), 0, torch.zeros(6), (0, 0)).stretch


def test_the_hash_is_that_of_the_bytes():
    for tensor in odd_state(3).values():
        flat = tensor.reshape(-1)
        assert sha256_of(flat) == hashlib.sha256(bits_of(flat)).hexdigest()
    strided = torch.arange(10.0)[::2]
    assert sha256_of(strided) == hashlib.sha256(bits_of(strided)).hexdigest()


def test_it_is_public_and_a_runtime_error():
    assert ringdp.checkpoint.CheckpointError is CheckpointError
    assert issubclass(CheckpointError, RuntimeError)


# Blocks are written and read back, and every damage of them is found.

SPEC = Spec("exp_avg", "w", (2, 5), "float32")
FLAT = torch.arange(10.0)
SHARES = [[Stretch(SPEC, 0, 4)], [], [Stretch(SPEC, 4, 3), Stretch(SPEC, 7, 3)]]


def test_a_share_is_cut_out_of_the_pieces_without_a_copy():
    first, second = FLAT[:4].clone(), FLAT[4:].clone()
    pieces = [Piece("exp_avg", "w", (2, 5), 0, first), Piece("exp_avg", "w", (2, 5), 4, second)]
    blocks = blocks_of(pieces, [Stretch(SPEC, 1, 2), Stretch(SPEC, 7, 3)])
    assert {block.offset: tensor.tolist() for block, tensor in blocks.items()} == {1: [1.0, 2.0], 7: [7.0, 8.0, 9.0]}
    assert blocks[Stretch(SPEC, 7, 3)].data_ptr() == second[3:].data_ptr()


def blocks_written(folder) -> list:
    parts = [{block: FLAT[block.offset : block.stop] for block in share} for share in SHARES]
    return [write_blocks(folder, rank, blocks) for rank, blocks in enumerate(parts)]


def test_torch_reads_what_ranks_have_written(tmp_path):
    everyones = blocks_written(tmp_path)
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
    everyones = blocks_written(tmp_path)
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


# A manifest comes back as it was written; anything else is refused with its name and what is wrong.

EMPTY = Spec("parameter", "none", (0,), "float32")


def manifest_with(hashes: dict[Stretch, str]) -> Manifest:
    return Manifest(hashes, [SPEC, EMPTY], {"__0_0.distcp": 7}, "ab" * 32, {"a": 0.1}, [1, {"b": None}], [{}, {}])


def manifest_written(folder: Path, hashes: dict[Stretch, str] | None = None) -> Manifest:
    manifest = manifest_with(hashes or {Stretch(SPEC, 0, 4): "00" * 32, Stretch(SPEC, 4, 6): "11" * 32})
    (folder / "__0_0.distcp").write_bytes(b"7 bytes")
    manifest.write(folder)
    return manifest


def test_it_comes_back(tmp_path):
    manifest = manifest_written(tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert manifest.ranks == 2


def flip(path: Path, old: bytes, new: bytes) -> None:
    text = path.read_bytes()
    assert old in text
    path.write_bytes(text.replace(old, new, 1))


BREAKS = {
    "not a complete checkpoint": lambda folder: (folder / FILE).unlink(),
    "truncated or corrupted": lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-9]),
    "not written by ringdp.checkpoint": lambda folder: (folder / FILE).write_text('{"model": 1}'),
    f"format version {VERSION + 1}, this ringdp reads up to {VERSION}": lambda folder: flip(
        folder / FILE, b'"version": 1', b'"version": 2'
    ),
    "its sha256 is not that of its content": lambda folder: flip(folder / FILE, b"0.1", b"0.2"),
    "__0_0.distcp is missing": lambda folder: (folder / "__0_0.distcp").unlink(),
    "__0_0.distcp is truncated: 6 bytes, not 7": lambda folder: (folder / "__0_0.distcp").write_bytes(b"6 byte"),
    "__0_0.distcp is longer": lambda folder: (folder / "__0_0.distcp").write_bytes(b"8 bytes."),
}


@pytest.mark.parametrize("says", BREAKS)
def test_a_damaged_or_foreign_one_is_refused_by_name(says, tmp_path):
    manifest_written(tmp_path)
    BREAKS[says](tmp_path)
    with pytest.raises(CheckpointError) as caught:
        read_manifest(tmp_path)
    assert says in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ([(0, 4), (5, 5)], "lacks or repeats elements 4 to 5"),
        ([(0, 4)], "has 4 of 10 elements"),
        ([(0, 4), (3, 7)], "lacks or repeats elements 4 to 3"),
    ],
)
def test_a_tensor_that_is_not_whole_is_named(blocks, says, tmp_path):
    manifest_written(tmp_path, {Stretch(SPEC, offset, length): "00" * 32 for offset, length in blocks})
    with pytest.raises(CheckpointError, match=says) as caught:
        read_manifest(tmp_path)
    assert "exp_avg/w" in str(caught.value)


def test_a_tensor_hash_is_the_hash_of_its_pieces_in_order(tmp_path):
    manifest_written(tmp_path)
    entries = {entry["kind"]: entry for entry in json.loads((tmp_path / FILE).read_text())["content"]["tensors"]}
    assert entries["exp_avg"]["sha256"] == hashlib.sha256(("00" * 32 + "11" * 32).encode()).hexdigest()
    assert entries["parameter"]["sha256"] == hashlib.sha256(b"").hexdigest()


# The directory of checkpoints: found, numbered, locked, cleared, and on the disk.


def saved_slot(directory: Path, keep: int | None = None) -> Path:
    slot = Slot(directory)
    try:
        (slot.unfinished / FILE).write_text("{}")
        return slot.commit(keep)
    finally:
        slot.close()


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


def test_numbers_go_up_and_the_latest_is_found(tmp_path):
    directory = tmp_path / "new" / "directory"
    paths = [saved_slot(directory) for _ in range(3)]
    assert [path.name for path in paths] == ["checkpoint-000001", "checkpoint-000002", "checkpoint-000003"]
    assert numbered(directory) == paths
    assert find(directory) == paths[-1]
    assert find(paths[0]) == paths[0]


def test_numbers_are_compared_as_numbers(tmp_path):
    (tmp_path / "checkpoint-1000000").mkdir()
    (tmp_path / "checkpoint-999999").mkdir()
    assert saved_slot(tmp_path).name == "checkpoint-1000001"


def test_only_the_latest_are_kept(tmp_path):
    for _ in range(4):
        saved_slot(tmp_path, keep=2)
    assert names_in(tmp_path) == ["checkpoint-000003", "checkpoint-000004"]


def test_a_save_that_is_given_up_leaves_nothing(tmp_path):
    first = saved_slot(tmp_path)
    Slot(tmp_path).close()
    assert names_in(tmp_path) == [first.name]


def test_leftovers_of_dead_saves_are_cleared_and_nothing_else(tmp_path):
    for name in (".unfinished-000009-abc", ".removed-checkpoint-000001", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    assert saved_slot(tmp_path).name == "checkpoint-000001"
    assert names_in(tmp_path) == ["checkpoint-000001", "mine"]


def test_a_second_process_is_refused_until_the_first_is_done_or_dead(tmp_path):
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            Slot(tmp_path)
            os.write(done, b"1")
            os.read(os.pipe()[0], 1)  # until killed
        finally:
            os._exit(1)
    os.read(ready, 1)
    with pytest.raises(CheckpointError, match="another process is saving into"):
        Slot(tmp_path)
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert saved_slot(tmp_path).name == "checkpoint-000001"


def test_saving_into_a_checkpoint_is_refused(tmp_path):
    path = saved_slot(tmp_path)
    with pytest.raises(CheckpointError, match="is a checkpoint itself"):
        Slot(path)


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_a_checkpoint_is_named(exists, tmp_path):
    directory = tmp_path / "directory"
    if exists:
        directory.mkdir()
        (directory / "model.pt").write_text("x")
    with pytest.raises(CheckpointError, match="no complete checkpoint of ringdp in") as caught:
        find(directory)
    assert ("model.pt" if exists else "does not exist") in str(caught.value)


def synced_paths(monkeypatch) -> list[str]:
    """The paths that os.fsync gets, in order, as they are called at that moment."""
    seen: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        seen.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return seen


def test_a_file_is_synced_when_it_is_whole(tmp_path, monkeypatch):
    seen = synced_paths(monkeypatch)
    write_durably(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"
    assert seen == [str(tmp_path / "a")]


def test_a_rename_is_followed_by_a_sync_of_the_folder(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    seen = synced_paths(monkeypatch)
    rename_durably(tmp_path / "old", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert seen == [str(tmp_path)]
