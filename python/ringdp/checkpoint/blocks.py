"""The blocks of a checkpoint, written, read and verified through torch.distributed.checkpoint: one file per rank.

The folder is also a checkpoint of DCP, with flat tensors under our keys, which torch's own tools can read. Reading
makes new tensors and does not change the running state: every block that a rank needs is read whole, hashed, then cut,
which takes memory for one block in addition to the result. A tensor stored in another memory order is read whole.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, filesystem, metadata
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_global_save_plan,
)
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from ringdp import bounded_pickle
from ringdp.checkpoint.manifest import Manifest
from ringdp.checkpoint.piece import CheckpointError, Piece, Spec, Stretch, reordered, sha256_of

INDEX = ".metadata"


@dataclass(frozen=True)
class Written:
    """What a rank has written, for the other ranks."""

    results: list[WriteResult]
    hashes: dict[Stretch, str]
    files: dict[str, int]


class _Blocks(DefaultSavePlanner):
    """Gives the writer the tensors of this rank's blocks."""

    def __init__(self, blocks: Mapping[Stretch, Tensor]) -> None:
        super().__init__()
        self._tensors = {index_of(stretch): tensor for stretch, tensor in blocks.items()}

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._tensors[index]


def blocks_of(pieces: Sequence[Piece], written: Sequence[Stretch]) -> dict[Stretch, Tensor]:
    """The tensor of each stretch that this rank writes, as a view of the piece that contains it."""
    by_key: dict[str, list[tuple[Stretch, Tensor]]] = {}
    for piece in pieces:
        by_key.setdefault(piece.stretch.spec.key, []).append((piece.stretch, piece.tensor))
    found = {}
    for wanted in written:
        around, tensor = next(
            (have, tensor)
            for have, tensor in by_key[wanted.spec.key]
            if have.offset <= wanted.offset and wanted.stop <= have.stop
        )
        found[wanted] = tensor[wanted.offset - around.offset : wanted.stop - around.offset]
    return found


def write_blocks(folder: Path, rank: int, blocks: Mapping[Stretch, Tensor]) -> Written:
    """Writes and syncs this rank's file."""
    plan = _plans([list(blocks)])[0]
    writer = _writer(folder)
    writer.set_up_storage_writer(rank == 0, rank=rank, use_collectives=True)
    # The writer names files after the plan's place among all ranks' plans.
    own = writer.prepare_global_plan([*[SavePlan([])] * rank, plan])[rank]
    hashes = {stretch: sha256_of(tensor) for stretch, tensor in blocks.items()}
    results = writer.write_data(own, _Blocks(blocks)).wait()
    files = {path.name: path.stat().st_size for path in folder.glob(f"{own.storage_data.prefix}*")}
    return Written(results, hashes, files)


def write_index(folder: Path, by_rank: Sequence[Written]) -> None:
    """On rank 0, when all ranks have written: checks that their files are visible here, and writes DCP's index."""
    for rank, written in enumerate(by_rank):
        for name, length in written.files.items():
            path = folder / name
            if not path.exists() or path.stat().st_size != length:
                raise CheckpointError(
                    f"{path}, which rank {rank} has written, is not visible to rank 0: "
                    "the folder must be on a file system that all ranks share"
                )
    _, metadata = create_default_global_save_plan(_plans([list(written.hashes) for written in by_rank]))
    writer = _writer(folder)
    writer.set_up_storage_writer(True, rank=0, use_collectives=True)
    writer.finish(metadata, [written.results for written in by_rank])


def index_of(stretch: Stretch) -> MetadataIndex:
    """The key of a block in DCP's index."""
    return MetadataIndex(stretch.spec.key, [stretch.offset])


def _writer(folder: Path) -> FileSystemWriter:
    return FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)


def _plans(of_ranks: Sequence[Sequence[Stretch]]) -> list[SavePlan]:
    return [SavePlan([_write_item(stretch) for stretch in stretches]) for stretches in of_ranks]


def _write_item(stretch: Stretch) -> WriteItem:
    chunk = ChunkStorageMetadata(offsets=torch.Size([stretch.offset]), sizes=torch.Size([stretch.length]))
    properties = TensorProperties(dtype=stretch.spec.torch_dtype)
    size = torch.Size([stretch.spec.elements])
    return WriteItem(index_of(stretch), WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, properties, size))


@dataclass(frozen=True)
class _Landing:
    """The tensor that receives a wanted stretch."""

    stretch: Stretch
    tensor: Tensor


class _Verifier(DefaultLoadPlanner):
    """Takes each block from the reader, compares its hash, and copies the wanted part."""

    def __init__(self, hashes: dict[Stretch, str], landings: dict[Stretch, list[_Landing]]) -> None:
        super().__init__()
        self._hashes = hashes
        self._landings = landings
        self._blocks = {index_of(block): block for block in landings}

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        block = self._blocks[read_item.storage_index]
        return torch.empty(block.length, dtype=block.spec.torch_dtype)

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        block = self._blocks[read_item.storage_index]
        if sha256_of(tensor) != self._hashes[block]:
            raise CheckpointError(f"{block} are corrupted: their sha256 is not the one that was saved")
        for landing in self._landings[block]:
            start = max(block.offset, landing.stretch.offset)
            stop = min(block.stop, landing.stretch.stop)
            to, of = start - landing.stretch.offset, start - block.offset
            landing.tensor[to : to + stop - start] = tensor[of : of + stop - start]


# The classes in an index. Layouts are pickled as a call of torch's function.
_CLASSES = {
    *(getattr(metadata, name) for name in metadata.__all__),
    metadata._MEM_FORMAT_ENCODING,
    filesystem._StorageInfo,
    torch.Size,
    torch.serialization._get_layout,
}


class _IndexReader(pickle.Unpickler):
    """Unpickles DCP's index: creates DCP's own classes only, and runs no other code that a file may name."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("pathlib"):  # the folder at the time of saving, not used
            return _Path
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        for known in _CLASSES:
            if (module, name) == (known.__module__, known.__qualname__):
                return known
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not part of an index")


class _Path:
    """Stands for a path."""

    def __init__(self, *parts: Any) -> None:
        pass


def read_pieces(folder: Path, manifest: Manifest, wanted: Iterable[Stretch]) -> list[Piece]:
    """The wanted stretches with their saved values, on the CPU, in the order of `wanted`.

    Raises CheckpointError, naming the file, if a block cannot be read or its hash differs.
    """
    wanted = list(wanted)
    stored = {spec.key: spec for spec in manifest.specs}
    places = [_place(folder, stored.get(stretch.spec.key), stretch) for stretch in wanted]
    landings = {place: torch.empty(place.length, dtype=place.spec.torch_dtype) for place in places}
    by_block = _landings_by_block(manifest, landings)
    reader = _reader(folder, manifest)
    by_file: dict[str, list[Stretch]] = defaultdict(list)
    for block in sorted(by_block):
        by_file[_file_of(folder, reader, index_of(block), manifest)].append(block)
    for name, blocks in sorted(by_file.items()):
        path = folder / name
        planner = _Verifier(manifest.hashes, {block: by_block[block] for block in blocks})
        try:
            reader.read_data(LoadPlan([_read_item(block) for block in blocks]), planner)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}; take an older checkpoint") from error
        except Exception as error:  # torch.load may raise anything on damaged bytes
            raise CheckpointError(f"{path} is corrupted ({type(error).__name__}: {error})") from error
    return [_piece(place, landings[place], stretch) for place, stretch in zip(places, wanted, strict=True)]


def whole_of(specs: Sequence[Spec]) -> list[Stretch]:
    """Every tensor from its first to its last element, in row-major order."""
    return [Stretch(spec.row_major, 0, spec.elements) for spec in specs]


def _place(folder: Path, stored: Spec | None, wanted: Stretch) -> Stretch:
    """What must be read for a stretch: the stretch, or the whole tensor if it is stored in another order."""
    spec = wanted.spec
    if stored is None or stored.row_major != spec.row_major or wanted.offset < 0 or wanted.stop > spec.elements:
        raise CheckpointError(f"{folder} does not hold {wanted}")
    return wanted if stored.order == spec.order else Stretch(stored, 0, stored.elements)


def _landings_by_block(manifest: Manifest, landings: Mapping[Stretch, Tensor]) -> dict[Stretch, list[_Landing]]:
    blocks_of: dict[Spec, list[Stretch]] = defaultdict(list)
    for block in manifest.hashes:
        blocks_of[block.spec].append(block)
    found: dict[Stretch, list[_Landing]] = defaultdict(list)
    for place, tensor in landings.items():
        for block in blocks_of[place.spec]:
            if block.offset < place.stop and place.offset < block.stop:
                found[block].append(_Landing(place, tensor))
    return found


def _reader(folder: Path, manifest: Manifest) -> FileSystemReader:
    """A reader with a verified index, unpickled without running code, because hashes can be forged too."""
    path = folder / INDEX
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; take an older checkpoint") from error
    if hashlib.sha256(content).hexdigest() != manifest.index_sha256:
        raise CheckpointError(f"{path} is corrupted: its sha256 is not the saved one; take an older checkpoint")
    reader = FileSystemReader(folder)
    try:
        bounded_pickle.check(content)
        reader.set_up_storage_reader(_IndexReader(io.BytesIO(content)).load(), is_coordinator=False)
    except Exception as error:  # a forged pickle may raise anything
        raise CheckpointError(
            f"{path} is not an index ({type(error).__name__}: {error}); nothing of it was run"
        ) from error
    return reader


def _file_of(folder: Path, reader: FileSystemReader, index: MetadataIndex, manifest: Manifest) -> str:
    if index not in reader.storage_data:
        raise CheckpointError(f"{folder / INDEX} does not know where {index.fqn} from {index.offset} on is stored")
    name = reader.storage_data[index].relative_path
    if name not in manifest.files or Path(name).name != name:
        raise CheckpointError(f"{folder / INDEX} names {name}, which is not a file of this checkpoint")
    return name


def _read_item(block: Stretch) -> ReadItem:
    """Reads the whole block, as its hash covers all of it."""
    start, length = torch.Size([0]), torch.Size([block.length])
    index = index_of(block)
    return ReadItem(LoadItemType.TENSOR, index, start, index, start, length)


def _piece(place: Stretch, tensor: Tensor, wanted: Stretch) -> Piece:
    spec = wanted.spec
    if place != wanted:
        tensor = reordered(tensor, place.spec, spec.order)[wanted.offset : wanted.stop].clone()
    return Piece(spec.kind, spec.name, spec.shape, wanted.offset, tensor, spec.order)
