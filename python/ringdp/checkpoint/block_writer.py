"""A rank's part of a checkpoint, written by torch.distributed.checkpoint's FileSystemWriter: one file per rank.

The folder is a checkpoint of DCP as well: its tensors are our keys, flat, and torch's own tools read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_global_save_plan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from ringdp.checkpoint.errors import CheckpointError
from ringdp.checkpoint.piece import Piece, Stretch, sha256_of

INDEX = ".metadata"


@dataclass(frozen=True)
class Written:
    """What a rank tells the others about its part."""

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


def blocks_of(pieces: Sequence[Piece], share: Sequence[Stretch]) -> dict[Stretch, Tensor]:
    """The views of the pieces that this rank writes. Every stretch of a share lies inside one piece."""
    by_key: dict[str, list[tuple[Stretch, Tensor]]] = {}
    for piece in pieces:
        by_key.setdefault(piece.stretch.spec.key, []).append((piece.stretch, piece.tensor))
    found = {}
    for wanted in share:
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


def write_index(folder: Path, everyones: Sequence[Written]) -> None:
    """Rank 0, when all have written: checks that their files can be seen from here, and writes DCP's index."""
    for rank, written in enumerate(everyones):
        for name, length in written.files.items():
            path = folder / name
            if not path.exists() or path.stat().st_size != length:
                raise CheckpointError(
                    f"{path}, which rank {rank} has written, is not there for rank 0: "
                    "the folder must be on a file system that all ranks share"
                )
    _, metadata = create_default_global_save_plan(_plans([list(written.hashes) for written in everyones]))
    writer = _writer(folder)
    writer.set_up_storage_writer(True, rank=0, use_collectives=True)
    writer.finish(metadata, [written.results for written in everyones])


def index_of(stretch: Stretch) -> MetadataIndex:
    """What DCP calls a block."""
    return MetadataIndex(stretch.spec.key, [stretch.offset])


def _writer(folder: Path) -> FileSystemWriter:
    return FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)


def _plans(shares: Sequence[Sequence[Stretch]]) -> list[SavePlan]:
    return [SavePlan([_item(stretch) for stretch in share]) for share in shares]


def _item(stretch: Stretch) -> WriteItem:
    chunk = ChunkStorageMetadata(offsets=torch.Size([stretch.offset]), sizes=torch.Size([stretch.length]))
    properties = TensorProperties(dtype=stretch.spec.torch_dtype)
    size = torch.Size([stretch.spec.elements])
    return WriteItem(index_of(stretch), WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, properties, size))
