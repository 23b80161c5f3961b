"""Shards in memory that all ranks of a host map: each outlives its rank, also in the middle of a step.

Nothing is stepped twice, and nothing is sent. What a rank steps, the optimizer's state and a copy of the gradients lie
in its heap, beside a record of where, and how often each piece has been stepped. A step is a number of the group:

    share     the gradients are final: a record of the step is written, and published. Then all ranks vote
    begin     the settings are written, and the step has begun here
    blocks    are stepped, one after the other, and noted in the record (csrc/zero/step_journal.h)

So of a rank that has died, the latest record says what is left to do. If any rank has begun the step, all have voted,
so it was published here: what has not been stepped is stepped now, with the settings of a rank that has begun it, on a
copy. If none has, the shard is what it was. There are two records by turns, as the one published must stay whole while
the next is written. Of ranks that go on, others read words only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim import SGD, Optimizer

from ringdp import _native
from ringdp.zero import native
from ringdp.zero.flat import FlatParameters, Piece
from ringdp.zero.gradients import Gradients, ShardedGradients, WholeGradients
from ringdp.zero.state import MASTER

if TYPE_CHECKING:
    from ringdp.zero.regroup import Entry, Item, Shard

_C = _native.load()
_CPU = torch.device("cpu")
VALUE = ""  # the elements of the parameter
NOT_SHARED = "ZeroOptimizer: step() without share_gradients() before it, since regroup(keep_next=True)"
_WORD = 8  # bytes
_PUBLISHED, _BEGUN, _TAKEN, _IN_FLIGHT, _WORDS = range(5)  # steps; whether it serves; and a word of the journal
_STATE, _GRADIENT, _PLACES = 1, 4, 5  # of a piece: itself, up to three tensors of state, its gradient
_NOWHERE = -1
_ARRAYS = 10  # at most, of the elements of a shard, while it is cut: it and its state before and after, gradients
_MARGINS = 1 << 16  # bytes around the arrays of a piece


@dataclass
class Record:
    """Of one step. places: in the heap, of each piece. numbers: of steps of each before it. done, settings: see above.

    For SGD, a number above 0 says that there is a momentum buffer.
    """

    places: torch.Tensor
    numbers: torch.Tensor
    done: torch.Tensor
    settings: torch.Tensor


class Journal:
    """What a rank writes for the others: words, old values of a block, and two records."""

    def __init__(self, memory: torch.Tensor, pieces: int, groups: int) -> None:
        parts = iter(memory.split(_sizes(pieces, groups)))
        self.words = next(parts).view(torch.int64)
        self._undo = next(parts).view(torch.float32)
        self._records = [
            Record(
                next(parts).view(torch.int64).view(pieces, _PLACES),
                next(parts).view(torch.float64),
                next(parts).view(torch.int64),
                next(parts).view(torch.float64).view(groups, native.SETTINGS),
            )
            for _ in range(2)
        ]

    @staticmethod
    def nbytes(pieces: int, groups: int) -> int:
        """Of its memory."""
        return sum(_sizes(pieces, groups))

    def record(self, step: int) -> Record:
        """Of a step that was published last, or before that."""
        return self._records[step % 2]

    @property
    def published(self) -> int:
        """The latest step that is shared; 0: none."""
        return int(self.words[_PUBLISHED])

    @property
    def begun(self) -> int:
        """The latest step that has begun."""
        return int(self.words[_BEGUN])

    @property
    def is_taken(self) -> bool:
        """Whether its rank has taken this shard, and has none of the group before."""
        return bool(self.words[_TAKEN])

    def take(self) -> None:
        """Before anything of the shard before is gone."""
        self.words[_TAKEN] = 1

    def publish(self, step: int) -> None:
        """The record of this step is written."""
        self.words[_PUBLISHED] = step

    def begin(self, step: int) -> None:
        """The settings of this step are written."""
        self.words[_BEGUN] = step

    def blocks(self, step: int) -> Any:
        """The journal of the blocks of that step."""
        return _C.StepJournal(self.record(step).done, self.words[_IN_FLIGHT : _IN_FLIGHT + 1], self._undo)


def _sizes(pieces: int, groups: int) -> list[int]:
    record = [pieces * _PLACES * _WORD, pieces * _WORD, pieces * _WORD, groups * native.SETTINGS * _WORD]
    undo = _C.StepJournal.arrays * _C.StepJournal.block * torch.float32.itemsize
    return [_WORDS * _WORD, undo, *record, *record]


def can_share(group: dist.ProcessGroup, optimizer: Optimizer, flats: Sequence[FlatParameters], *, whole: bool) -> bool:
    """Whether its ranks map each other's memory, ringdp's kernels step what this optimizer has, and there is room.

    flats: also frozen ones, of the group before. whole: they have whole parameters.
    """
    parameters = [parameter for flat in flats for parameter in flat.parameters]
    if group.size() == 1 or not native.serves(optimizer) or any(map(torch.is_complex, parameters)):
        return False
    backend = group._get_backend(_CPU)
    if not (isinstance(backend, _C.Backend) and backend.maps_all_heaps()):
        return False
    elements = sum(parameter.numel() for parameter in parameters)
    pieces = len(parameters) + sum(len(flat) for flat in flats)
    needed = _ARRAYS * torch.float32.itemsize * elements // group.size() + pieces * _MARGINS
    needed += 2 * Journal.nbytes(pieces, len(optimizer.param_groups))
    return needed + 2 * sum(p.nbytes for p in parameters if whole) <= backend.heap_room()


class SharedShards:
    """Of all ranks of `group`. pieces: how many each has. kind: the class that steps them, which serves().

    Made before there is a shard: map() follows, then hold(), in front of the vote with which ranks take their shards,
    take() and serve(). RuntimeError where the heap is full.
    """

    def __init__(self, group: dist.ProcessGroup, kind: type[Optimizer], pieces: Sequence[int], groups: int) -> None:
        self._backend, self._rank, self._kind = group._get_backend(_CPU), group.rank(), kind
        self._pieces, self._groups = list(pieces), groups
        self._backend.keep_heap_pages()  # this rank may leave alive, and others read its shard then
        self._memory = self.zeros(Journal.nbytes(pieces[self._rank], groups), torch.uint8)
        self._own = Journal(self._memory, pieces[self._rank], groups)
        self._heaps: list[torch.Tensor] = []
        self._journals: list[Journal] = []
        self._shard: Shard | None = None
        self._sources: list[Gradients] = []
        self._entries: object = None  # to which the first record points
        self._copies: torch.Tensor | None = None  # of the gradients of all pieces, which lie elsewhere
        self._buffers: dict[torch.Tensor, torch.Tensor] = {}  # of momenta that a step creates
        self._given: list[tuple[torch.Tensor, torch.Tensor | None, int]] = []  # gradients as shared: see check()
        self._kept: list[list[bool]] = []  # those in shards
        self._is_shared = False  # gradients that are neither stepped nor dropped

    def zeros(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """In this rank's heap."""
        try:
            return self._backend.allocate_tensor(elements, dtype=dtype, device=_CPU).zero_()
        except dist.DistError as error:  # would pass for a fault of another rank
            raise RuntimeError(_NO_ROOM) from error

    # When shards have been cut.

    def hold(self, entries: Sequence[Sequence[Entry]]) -> None:
        """This rank's shard, as it is before the first step, in memory of zeros().

        entries: per set of flat parameters and piece. Elements that no entry has are those of whole parameters.
        """
        record, self._entries = self._own.record(0), [[dict(entry) for entry in of_flat] for of_flat in entries]
        for number, entry in enumerate(entry for of_flat in entries for entry in of_flat):
            state = (entry.get(key) for key in native.STATE[self._kind])
            held = [entry.get(MASTER, entry.get(VALUE)), *state]
            record.places[number] = torch.tensor(self._row(held, None))
            record.numbers[number] = _number(entry)

    def place_of_own(self) -> int:
        """Where this rank's journal is, for map() of others."""
        return self._place(self._memory)

    def map(self, places: Sequence[int]) -> None:
        """Where the journals of all ranks are."""
        self._heaps = [self._backend.heap_view(rank, 0) for rank in range(len(places))]
        sizes = [Journal.nbytes(pieces, self._groups) for pieces in self._pieces]
        memory = [heap[at : at + size] for heap, at, size in zip(self._heaps, places, sizes, strict=True)]
        self._journals = [
            Journal(part, pieces, self._groups) for part, pieces in zip(memory, self._pieces, strict=True)
        ]

    def take(self) -> None:
        """The vote has passed: before anything of the shard before is gone."""
        self._own.take()

    def is_taken(self) -> bool:
        """Whether it has passed for any rank, also one that has died since: that rank has no other shard."""
        return any(journal.is_taken for journal in self._journals)

    def serve(
        self, shard: Shard, sources: Sequence[Gradients], members: Sequence[Sequence[torch.Tensor]]
    ) -> SharedShards:
        """What is shared from now on, in this object.

        sources: of the gradients of the first sets of parameters in it. members: of the param groups, parameters.
        """
        self._shard, self._sources = shard, list(sources)
        self._groups_of = {id(parameter): n for n, group in enumerate(members) for parameter in group}
        self._firsts = [0, *accumulate(len(flat.pieces) for flat in shard.flats)]  # piece of each set, in the journal
        self._ends = [0, *accumulate(len(tensor) for _, tensor in self._numbered())]
        return self

    # Steps of this rank.

    def share(self, group: dist.ProcessGroup) -> None:
        """The gradients of the next step are final."""
        del group
        step = self._own.begun + 1
        record, gradients = self._own.record(step), self._gradients()
        self._make_state(gradients)
        rows, numbers = [], []
        for number, tensor in self._numbered():
            entry = self._shard.optimizer.state.get(tensor, {})
            state = [entry.get(key) for key in native.STATE[self._kind]]
            if tensor in self._buffers:
                state = [self._buffers[tensor]]
            rows.append(self._row([tensor, *state], self._copied(number, gradients.get(number))))
            numbers.append(_number(entry))
        self._own.words[_IN_FLIGHT] = 0
        if rows:
            record.places.copy_(torch.tensor(rows))
            record.numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
        record.done.zero_()
        self._own.publish(step)
        self._entries, self._is_shared = None, True
        whole = (flat for flat, source in self._sourced() if isinstance(source, WholeGradients))
        self._given = [(p, p.grad, 0 if p.grad is None else p.grad._version) for flat in whole for p in flat.parameters]
        self._kept = self._in_shards()

    def check(self) -> None:
        """Before the step. RuntimeError without share(), and where gradients or settings have changed since."""
        if not self.has_gradients():
            raise RuntimeError(NOT_SHARED)
        if self._in_shards() != self._kept:
            raise RuntimeError(
                f"ZeroOptimizer: a gradient was dropped since share_gradients(), {_LATE}: set .grad to None before it"
            )
        for parameter, gradient, version in self._given:
            if parameter.grad is not gradient or (gradient is not None and gradient._version != version):
                raise RuntimeError(
                    f"ZeroOptimizer: the gradient of a parameter of shape {list(parameter.shape)} has changed since "
                    f"share_gradients(), {_LATE}: change it before; or, under elastic.survive, use clip= or "
                    'shards="copies"'
                )

    def check_settings(self) -> None:
        """When the optimizer has those of the step. RuntimeError where the kernels do not support them."""
        if not native.serves(self._shard.optimizer):
            raise RuntimeError(
                "ZeroOptimizer: settings of the param groups have changed to what ringdp's kernels do not support, and "
                'a step of shards in shared memory needs them: use elastic.survive(shards="copies")'
            )

    def begin(self, groups: Sequence[native.Group]) -> None:
        """The step begins, with these settings. Nothing has been stepped, but state has been created."""
        self._check_state()
        step = self._own.published
        settings = [native.settings_of(self._kind, group) for group in groups]
        self._own.record(step).settings.copy_(torch.tensor(settings, dtype=torch.float64))
        self._own.begin(step)
        self.drop()
        self._buffers.clear()

    def journal(self, flat: int) -> tuple[Any, int]:
        """Of the step that has begun, and the number there of the first piece of this set of parameters."""
        return self._own.blocks(self._own.begun), self._firsts[flat]

    def buffer(self, piece: torch.Tensor) -> torch.Tensor:
        """For a momentum that a step creates."""
        return self._buffers[piece] if piece in self._buffers else torch.empty_like(piece)

    def run(self, **_: Any) -> None:
        """After the step: nothing, as there are no copies."""

    def drop(self) -> None:
        """Gradients are dropped, or are being stepped."""
        self._is_shared = False
        self._given.clear()
        self._kept.clear()

    def has_gradients(self) -> bool:
        """Whether gradients are shared that were not stepped."""
        return self._is_shared

    def _in_shards(self) -> list[list[bool]]:
        """Of each set of sharded gradients, by parameter, whether it is there."""
        return [source.kept() for source in self._sources if isinstance(source, ShardedGradients)]

    def take_settings(self, groups: Sequence[native.Group]) -> None:
        """Nothing: settings are written as the step begins."""

    def check_complete(self) -> None:
        """Nothing: no copy is torn."""

    def bytes(self, *, with_values: bool) -> int:
        """Of the copies of gradients; there are no others."""
        del with_values
        return 0 if self._copies is None else self._copies.nbytes

    # When a rank has died.

    def place(self) -> dict[str, int]:
        """What it changes of its rank's Place."""
        return {"shares": 1, "steps": self._own.begun}

    def behind(self) -> int:
        """How many steps other ranks, also dead ones, have begun that this one has not."""
        return self._latest() - self._own.begun

    def shards(self, senders: Sequence[int], rank: int) -> dict[int, Orphan]:
        """By old rank, those of the others that this rank, of this number in a new group, sends."""
        return {owner: Orphan(self, owner) for owner, by in enumerate(senders) if by == rank and owner != self._rank}

    def items_of(self, owner: int) -> list[Item]:
        """All of that rank's shard, which has died: see Shard.items(). RuntimeError if this rank is a step behind."""
        latest, journal = self._latest(), self._journals[owner]
        if self._own.begun < latest or journal.published < latest:
            raise RuntimeError(
                f"ZeroOptimizer: of the ranks before, one has begun step {latest} of this group, and rank {owner}, "
                f"which is gone, was at {journal.published}, this one at {self._own.begun}: a step that one rank has "
                "applied is applied by all that share_gradients() before others regroup(): load a checkpoint"
            )
        is_stepped = 0 < latest == journal.published
        settings = next(other.record(latest).settings for other in self._journals if other.begun == latest)
        found: list[Item] = []
        for number, (place, flat, piece, group) in enumerate(self._pieces_of(owner)):
            of_group = settings[group].tolist() if is_stepped and group is not None else None
            items = self._items(owner, number, flat, piece, group, of_group)
            found.extend((*place, key, value) for key, value in items)
        return found

    def _latest(self) -> int:
        return max(journal.begun for journal in self._journals)

    def _pieces_of(self, owner: int) -> Iterator[tuple[tuple[int, int], FlatParameters, Piece, int | None]]:
        """Where each is in Shard.items(), and its param group; None: of none."""
        for number, flat in enumerate(self._shard.flats):
            for piece_number, facts in enumerate(flat.layout.pieces(owner)):
                piece = Piece(*facts)
                yield (number, piece_number), flat, piece, self._groups_of.get(id(flat.parameters[piece.parameter]))

    def _items(
        self,
        owner: int,
        number: int,
        flat: FlatParameters,
        piece: Piece,
        group: int | None,
        settings: list[float] | None,
    ) -> Iterator[tuple[str, Any]]:
        """settings: of the step that is to be complete; None where the piece is what it was before the latest one."""
        journal, dtype = self._journals[owner], flat.parameters[piece.parameter].dtype
        record, has_master = journal.record(journal.published), flat.fp32_copies[piece.bucket] is not None
        at, *of_state, of_gradient = record.places[number].tolist()
        steps, done = float(record.numbers[number]), int(record.done[number])
        stepped = torch.float32 if has_master else dtype
        if at == _NOWHERE:
            begin = owner * flat.layout.shard(piece.bucket) + piece.offset
            value = flat.whole(piece.bucket)[begin : begin + piece.length]
        else:
            value = self._view(owner, at, piece.length, stepped)
        state = [None if at == _NOWHERE else self._view(owner, at, piece.length) for at in of_state]
        if settings is not None and of_gradient != _NOWHERE:
            used = native.used_state(self._kind, settings)
            if done < piece.length:
                gradient = self._view(owner, of_gradient, piece.length)
                arrays = [None if array is None else array.clone() for array in (value, *state[:used])]
                journal.blocks(journal.published).undo(number, arrays)
                rest = [None if array is None else array[done:] for array in arrays]
                native.step_rest(self._kind, settings, rest, steps, gradient[done:])
                value, *state[:used] = arrays
            steps += used > 0
        yield VALUE, value.to(dtype)
        if has_master:
            yield MASTER, value if at != _NOWHERE else value.float()
        if self._kind is SGD:
            if state[0] is not None and steps > 0:
                yield native.STATE[SGD][0], state[0]
            return
        if state[0] is not None:
            yield from (
                (key, found) for key, found in zip(native.STATE[self._kind], state, strict=True) if found is not None
            )
            yield "step", torch.tensor(steps, dtype=native.number_dtype(self._shard.optimizer.param_groups[group]))

    def _view(self, owner: int, at: int, elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self._heaps[owner][at : at + elements * dtype.itemsize].view(dtype)

    # What share() writes.

    def _numbered(self) -> Iterator[tuple[int, torch.Tensor]]:
        return enumerate(tensor for flat in self._shard.flats for tensor in flat.tensors)

    def _sourced(self) -> Iterator[tuple[FlatParameters, Gradients]]:
        return zip(self._shard.flats, self._sources, strict=False)  # frozen parameters have no gradients

    def _gradients(self) -> dict[int, torch.Tensor]:
        """By number of the piece."""
        found = {}
        for first, (flat, source) in zip(self._firsts, self._sourced(), strict=False):
            source.check(flat)
            for of_bucket in map(source.by_bucket(flat), range(len(flat))):
                found.update((first + number, gradient) for number, gradient in of_bucket.items())
        return found

    def _make_state(self, gradients: dict[int, torch.Tensor]) -> None:
        """All that the step will write exists, in the heap, before ranks vote: memory must not be lacking then."""
        optimizer = self._shard.optimizer
        stepped = {tensor for number, tensor in self._numbered() if number in gradients}
        native.make_state(optimizer, {tensor for tensor in stepped if not optimizer.state.get(tensor)})
        for tensor in stepped:
            entry = optimizer.state.get(tensor, {})
            for key in native.STATE[self._kind]:
                value = entry.get(key)
                if value is not None and self._backend.place_in_heap(value) is None:
                    entry[key] = self.zeros(value.numel(), value.dtype).copy_(value)
        if self._kind is not SGD:
            return
        for group in optimizer.param_groups:
            for tensor in stepped.intersection(group["params"]) if group["momentum"] else ():
                if optimizer.state.get(tensor, {}).get(native.STATE[SGD][0]) is None and tensor not in self._buffers:
                    self._buffers[tensor] = self.zeros(tensor.numel(), tensor.dtype)

    def _check_state(self) -> None:
        """RuntimeError where a setting has made the step create state since share()."""
        rows = self._own.record(self._own.published).places.tolist()
        for (_, tensor), row in zip(self._numbered(), rows, strict=True):
            entry = self._shard.optimizer.state.get(tensor, {}) if row[_GRADIENT] != _NOWHERE else {}
            for key, place in zip(native.STATE[self._kind], row[_STATE:], strict=False):
                if entry.get(key) is not None and self._backend.place_in_heap(entry[key]) != place:
                    raise RuntimeError(
                        f"ZeroOptimizer: {key} is new since share_gradients(), by a setting of the param groups: "
                        "change momentum from 0 before that"
                    )

    def _copied(self, number: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        if gradient is None:
            return None
        if self._copies is None:
            self._copies = self.zeros(self._ends[-1], torch.float32)
        return self._copies[self._ends[number] : self._ends[number + 1]].copy_(gradient)

    def _row(self, held: Sequence[torch.Tensor | None], gradient: torch.Tensor | None) -> list[int]:
        """held: the piece, and its state."""
        padded = [*held, *[None] * (_GRADIENT - len(held)), gradient]
        return [_NOWHERE if tensor is None else self._place(tensor) for tensor in padded]

    def _place(self, tensor: torch.Tensor) -> int:
        place = self._backend.place_in_heap(tensor) if tensor.numel() else 0
        if place is None:
            raise RuntimeError(_NO_ROOM)
        return place


_NO_ROOM = (
    "ZeroOptimizer: a shard is to outlive its rank in shared memory, of which there is not enough: set heap_bytes "
    'higher, or use elastic.survive(shards="copies")'
)
_LATE = "and if this rank died another one would complete the step with what was there then"


class Orphan:
    """The shard of a rank that has died."""

    def __init__(self, shared: SharedShards, owner: int) -> None:
        self._items: list[Item] | None = None
        self._shared, self._owner = shared, owner

    def items(self) -> list[Item]:
        """See Shard."""
        if self._items is None:
            self._items = self._shared.items_of(self._owner)
        return self._items

    def restore_views(self) -> None:
        """Nothing: nobody has assigned anything."""


def _number(entry: Entry) -> float:
    """Of steps; for SGD whether there is a momentum."""
    if "step" in entry:
        return float(entry["step"])
    return float(entry.get(native.STATE[SGD][0]) is not None)
