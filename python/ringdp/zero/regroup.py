"""Shards that outlive a rank: each rank also keeps and steps those of the next one; and shards cut anew for a group.

Steps have exact bits, so a rank that has the same gradients *computes* the other's state: nothing is sent for it. On
one host, shards may lie in shared memory instead (shared_shards.py). When the group changes, each old shard is sent to
all ranks, by its owner or, if that has died, by a rank that has or reads it, and each takes what it owns now. The next
rank is the one `keep_next` places after: 1, or more where neighbours are on one host. All or none change: new values
are made beside the old ones, and taken when all ranks have them. So after a fault ranks differ by at most one such
change, and whoever is behind has what it lacks.
"""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ringdp import _native
from ringdp.text.units import names
from ringdp.zero import groups
from ringdp.zero.element_wise import is_per_element
from ringdp.zero.flat import FlatParameters, Piece, shaped
from ringdp.zero.in_flight import GathersInForward, HiddenBucket, InFlightGathers
from ringdp.zero.shared_shards import NOT_SHARED, VALUE, Orphan, SharedShards
from ringdp.zero.state import MASTER
from ringdp.zero.steps import WholeStep

_C = _native.load()
Entry = dict[str, Any]
Item = tuple[int, int, str, Any]  # flat, piece, key, value


@dataclass
class Shard:
    """What is kept of an owner's shard: its pieces, per set of flat parameters, and the optimizer that steps them."""

    flats: list[FlatParameters]
    optimizer: Optimizer

    def items(self) -> list[Item]:
        """All of it: the parameters' elements, the fp32 copies, the optimizer's state; in an order that all ranks have.

        NotImplementedError names state that is neither per element nor a number.
        """
        found: list[Item] = []
        for number, flat in enumerate(self.flats):
            for piece_number, (piece, tensor) in enumerate(zip(flat.pieces, flat.tensors, strict=True)):
                found.append((number, piece_number, VALUE, flat.own(piece.bucket)[piece.place]))
                if flat.fp32_copies[piece.bucket] is not None:
                    found.append((number, piece_number, MASTER, tensor.detach()))
                for key, value in sorted(self.optimizer.state.get(tensor, {}).items()):
                    _check_kind(key, value, tensor)
                    found.append((number, piece_number, key, value))
        return found

    def bytes(self, *, with_values: bool) -> int:
        """Of it; the parameters' elements have memory of their own at stage 3 only."""
        return sum(v.nbytes for *_, key, v in self.items() if torch.is_tensor(v) and (with_values or key != VALUE))

    def restore_views(self) -> None:
        """Takes over values that were assigned to .data. RuntimeError names a parameter whose layout has changed."""
        for flat in self.flats:
            for bucket in range(len(flat)):
                flat.restore_views(bucket)


def _check_kind(key: str, value: Any, piece: torch.Tensor) -> None:
    if torch.is_tensor(value) and value.dim() > 0 and not is_per_element(key, value.shape, piece.shape):
        raise NotImplementedError(
            f"ZeroOptimizer.regroup: state {key!r} has shape {list(value.shape)} for a piece of {piece.numel()} "
            "elements: it must be one number, or one per element"
        )


class Settings:
    """What a rank that joins gets besides shards: the settings of the param groups, and state that no rank steps.

    owner: the ZeroOptimizer, whose list of groups may be replaced.
    """

    def __init__(self, owner: Any, unstepped: dict[int, Entry]) -> None:
        self._owner, self._unstepped = owner, unstepped

    def state_dict(self) -> Entry:
        """See torch's optimizers."""
        return {"param_groups": groups.numbered(self._owner.param_groups), "unstepped": self._unstepped}

    def load_state_dict(self, state: Entry) -> None:
        """The inverse of state_dict()."""
        groups.copy_settings(state["param_groups"], self._owner.param_groups)
        self._unstepped.clear()
        self._unstepped.update(state["unstepped"])


_NOT_WHOLE = (
    "before it has arrived from the rank that stepped it (ZeroOptimizer.regroup with keep_next): call "
    "optimizer.gather() first; under elastic.survive that is done after apply(): use after= instead"
)


class GathersLater(InFlightGathers):
    """Steps without gathers. Between hide() and gather_all() or show() parameters cannot be read."""

    def __init__(self, flats: Sequence[FlatParameters], wrapper: Any | None) -> None:
        super().__init__()
        self._flats, self._wrapper = flats, wrapper
        self._buckets: list[HiddenBucket] = []  # made once, as they hold a tensor per parameter
        self._is_hidden = False

    def start(self, flat: FlatParameters, bucket: int) -> None:
        """Only rounds what was stepped."""
        flat.round_to_parameters(bucket)

    def hide(self) -> None:
        """After a step, when other ranks have stepped what is not this rank's."""
        if self._is_hidden:
            return
        if not self._buckets:
            places = [(flat, bucket) for flat in self._flats for bucket in range(len(flat)) if flat.hides(bucket)]
            names = self._names()
            self._buckets = [HiddenBucket(*place, names, _NOT_WHOLE) for place in places]
        for bucket in self._buckets:
            bucket.hide()
        self._is_hidden = bool(self._buckets)

    def _names(self) -> dict[torch.Tensor, str]:
        """For messages."""
        named = self._wrapper.module.named_parameters() if self._wrapper is not None else ()
        known = {id(parameter): name for name, parameter in named}
        return {p: known.get(id(p), f"of shape {list(p.shape)}") for flat in self._flats for p in flat.parameters}

    def show(self) -> None:
        """As they are."""
        for bucket in self._buckets if self._is_hidden else ():
            bucket.show()
        self._is_hidden = False

    def is_complete(self) -> bool:
        """Whether parameters are whole."""
        return not self._is_hidden

    def gather_all(self) -> None:
        """Collective; waits. If it fails, parameters stay hidden."""
        self.show()
        try:
            for flat in self._flats:
                for bucket in range(len(flat)):
                    work = flat.gather(bucket)
                    if work is not None:
                        self.follow(work)
            self.wait()
        except BaseException:
            self.hide()
            raise

    def forget(self) -> None:
        """See InFlightGathers."""
        self.show()
        super().forget()


class GradientsOfNext:
    """From stage 2 on: the next rank's shards of the means, as that had them at receive(). shift: see keep_next."""

    def __init__(self, reducer: Any, shift: int) -> None:
        self._reducer, self._shift = reducer, shift
        self._shards: list[torch.Tensor | None] | None = None

    def receive(self, group: dist.ProcessGroup) -> None:
        """Collective: every rank's shards go to the rank that keeps them, too."""
        rank, ranks = group.rank(), group.size()
        own = self._reducer.shards()
        found = [None if shard is None else torch.empty_like(shard) for shard in own]
        works = []
        for number, (shard, other) in enumerate(zip(own, found, strict=True)):
            if shard is not None and other is not None:
                works.append(dist.irecv(_bytes(other), group=group, group_src=(rank + self._shift) % ranks, tag=number))
                works.append(dist.isend(_bytes(shard), group=group, group_dst=(rank - self._shift) % ranks, tag=number))
        for work in works:
            work.wait()
        self._shards = found

    def check(self, flat: FlatParameters | None = None) -> None:
        """See Gradients."""
        if self._shards is None:
            raise RuntimeError(NOT_SHARED)

    def by_bucket(self, flat: FlatParameters) -> Callable[[int], dict[int, torch.Tensor]]:
        """See Gradients."""
        used, shards = self._reducer.stand_ins.kept(self._reducer.used()), self._shards or []

        def of_bucket(bucket: int) -> dict[int, torch.Tensor]:
            shard = shards[bucket]
            pieces = {number: flat.pieces[number] for number in flat.in_bucket(bucket)} if shard is not None else {}
            return {number: shard[piece.place] for number, piece in pieces.items() if used[piece.parameter]}

        return of_bucket

    def drop(self, set_to_none: bool = True) -> None:
        """See Gradients."""
        self._shards = None

    def bytes(self) -> int:
        """Of the shards that are here."""
        return sum(shard.nbytes for shard in self._shards or () if shard is not None)

    def is_here(self) -> bool:
        """Whether receive() has been called since the last drop()."""
        return self._shards is not None


@dataclass
class Kept:
    """The shard of the next rank, kept and stepped here, too. step: of its pieces. gradients: from stage 2 on.

    keep_next, owner: how many places it is away, and its rank. SharedShards is in the place of this where shards lie in
    shared memory.
    """

    keep_next: int
    owner: int
    shard: Shard
    step: WholeStep
    gradients: GradientsOfNext | None

    def place(self) -> dict[str, int]:
        """What it changes of its rank's Place."""
        return {"keeps_next": self.keep_next}

    def share(self, group: dist.ProcessGroup) -> None:
        """The gradients of the next step are final. Collective from stage 2 on."""
        if self.gradients is not None:
            self.gradients.receive(group)

    def check(self) -> None:
        """Before the own step. RuntimeError without gradients."""
        if self.gradients is not None:
            self.gradients.check()

    def run(self, **kwargs: Any) -> None:
        """The step; gradients are used up."""
        self.step.run(**kwargs)
        self.drop()

    def drop(self) -> None:
        """The gradients."""
        if self.gradients is not None:
            self.gradients.drop()

    def has_gradients(self) -> bool:
        """Whether gradients are shared that were not stepped."""
        return self.gradients is not None and self.gradients.is_here()

    def take_settings(self, settings: Sequence[groups.Group]) -> None:
        """Of the param groups."""
        groups.copy_settings(settings, self.shard.optimizer.param_groups)

    def check_complete(self) -> None:
        """RuntimeError where a step has failed halfway."""
        self.step.check()

    def shards(self, senders: Sequence[int], rank: int) -> dict[int, Shard | Orphan]:
        """By old rank, those of others that are here."""
        del senders, rank
        return {self.owner: self.shard}

    def bytes(self, *, with_values: bool) -> int:
        """Of everything, see Shard.bytes()."""
        return self.shard.bytes(with_values=with_values) + (0 if self.gradients is None else self.gradients.bytes())


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8)


@dataclass
class Place:
    """Of a rank, before a change: how many it has made, -1 without a state; its rank of how many in the latest one.

    keeps_next: it has the shard of the rank so many places after it, too; 0: of none. prepared: the change that it
    could make now; -1: none. wants_next: keep_next of the next change. shares: it reads the shards of all others.
    wants_shared: it would and can do so after the next change. steps: that it has made since the latest, if it shares.
    """

    changes: int
    rank: int
    ranks: int
    keeps_next: int = 0
    prepared: int = -1
    wants_next: int = 0
    shares: int = 0
    wants_shared: int = 0
    steps: int = 0


def check_regroups(kind: type[Optimizer], flats: Sequence[FlatParameters], in_flight: InFlightGathers) -> None:
    """NotImplementedError names what cannot be regrouped."""
    if not kind.__module__.startswith("torch.optim"):  # it may keep more than its state
        raise NotImplementedError(f"ZeroOptimizer.regroup: {kind.__name__} is not one of torch's optimizers")
    if any(len(flat) and flat.device.type != "cpu" for flat in flats):
        raise NotImplementedError("ZeroOptimizer.regroup: parameters on a device: it is for the CPU")
    if isinstance(in_flight, GathersInForward):
        raise NotImplementedError('ZeroOptimizer.regroup: gather="forward": leave that out')


def check_keep_next(keep_next: int, ranks: int) -> None:
    """ValueError unless it leads to another rank, or is 0."""
    if not 0 <= keep_next < max(2, ranks):
        raise ValueError(
            f"ZeroOptimizer.regroup: keep_next={keep_next} in a group of {ranks}, must be from 0 to {max(1, ranks - 1)}"
        )


def gathered(numbers: Sequence[int], group: dist.ProcessGroup) -> list[list[int]]:
    """Of each rank, as many. Collective."""
    own = torch.tensor(list(numbers), dtype=torch.int64)
    by_rank = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(by_rank, own, group=group)
    return [of_rank.tolist() for of_rank in by_rank]


def exchanged(own: Place, group: dist.ProcessGroup) -> list[Place]:
    """By rank. Collective. RuntimeError where no rank has a state, ValueError where keep_next differs."""
    places = [Place(*of_rank) for of_rank in gathered(astuple(own), group)]
    if all(place.changes < 0 for place in places):
        raise RuntimeError("ZeroOptimizer.regroup: has_state=False on all ranks: one of them must have a state")
    if len(wanted := sorted({place.wants_next for place in places})) > 1:
        raise ValueError(f"ZeroOptimizer.regroup: keep_next={wanted[0]} on one rank and {wanted[-1]} on another")
    newest = max(place.changes for place in places)
    if len(steps := sorted({place.steps for place in places if place.changes == newest})) > 1:
        raise RuntimeError(
            f"ZeroOptimizer.regroup: a rank has made {steps[0]} steps in the latest group and another {steps[-1]}: a "
            "rank that is behind makes its step first, with the gradients that it has shared"
        )
    return places


def layout_for(flat: FlatParameters, ranks: int) -> Any:
    """That of these parameters for another number of ranks."""
    return _C.ShardLayout([p.numel() for p in flat.parameters], flat.layout.buckets, ranks)


def senders_of(places: Sequence[Place]) -> list[int]:
    """Of each old shard, the rank of the new group that sends it. RuntimeError names shards that nobody has.

    places: by new rank, all with the same number of changes but for those without a state.
    """
    there = {new: place for new, place in enumerate(places) if place.changes >= 0}
    ranks = next(iter(there.values())).ranks
    copies = {(place.rank + place.keeps_next) % ranks: new for new, place in there.items() if place.keeps_next}
    owned = {place.rank: new for new, place in there.items()}
    readers = [new for new, place in there.items() if place.shares]
    holders = [owned.get(owner, copies.get(owner)) for owner in range(ranks)]
    if readers:
        holders = [readers[owner % len(readers)] if by is None else by for owner, by in enumerate(holders)]
    lost = [owner for owner, holder in enumerate(holders) if holder is None]
    if lost:
        raise RuntimeError(
            f"ZeroOptimizer: of the {ranks} ranks before, the shard of {names(lost)} is lost: no rank is left that has "
            "it. Load a checkpoint"
        )
    return [holder for holder in holders if holder is not None]


@dataclass
class Prepared:
    """A change for another group.

    number: of the change. keep_next: of the group after it. values: of whole parameters, by flat and parameter; none at
    stage 3. entries: what pieces have, by owner, flat and piece. differs: the old rank whose shard has other bits here
    than on that rank; -1: none. shared: where shards will lie in shared memory, as they do already.
    """

    number: int
    group: dist.ProcessGroup
    rank: int
    ranks: int
    keep_next: int
    values: list[list[torch.Tensor]]
    entries: dict[int, list[list[Entry]]]
    differs: int
    shared: SharedShards | None


def prepared(
    places: Sequence[Place],
    group: dist.ProcessGroup,
    own: Shard,
    others: Kept | SharedShards | None,
    *,
    has_state: bool,
    whole: bool,
) -> Prepared:
    """Collective over `group`: all old shards are sent, one after the other; nothing is changed yet.

    places: as exchanged. own: this rank's, or without has_state what has its parameters. others: what it has of other
    ranks. whole: ranks get whole parameters; otherwise only the elements of their pieces and of the next rank's.
    RuntimeError where what arrives is not what was sent.
    """
    rank, ranks, flats, keep_next = group.rank(), group.size(), own.flats, places[0].wants_next
    newest = max(place.changes for place in places)
    senders, old_ranks = senders_of(places), next(place.ranks for place in places if place.changes == newest)
    shards: dict[int, Shard | Orphan] = {places[rank].rank: own} if has_state else {}
    if others is not None:
        shards |= others.shards(senders, rank)
    for shard in shards.values():
        shard.restore_views()
    layouts = [(layout_for(flat, old_ranks), layout_for(flat, ranks)) for flat in flats]
    shared = None
    if all(place.wants_shared for place in places):
        pieces = [sum(len(new.pieces(owner)) for _, new in layouts) for owner in range(ranks)]
        shared = SharedShards(group, type(own.optimizer), pieces, len(own.optimizer.param_groups))
        shared.map([place for (place,) in gathered([shared.place_of_own()], group)])
    values = [[torch.zeros(p.numel(), dtype=p.dtype) for p in flat.parameters] for flat in flats if whole]
    next_rank = rank if shared is not None else (rank + keep_next) % ranks
    owners = {owner: [_pieces(new, owner) for _, new in layouts] for owner in (rank, next_rank)}
    zeros = _zeros if shared is None else shared.zeros
    entries = {owner: [[Entry() for _ in pieces] for pieces in of_owner] for owner, of_owner in owners.items()}
    targets: dict[tuple[int, int], list[tuple[Piece, Entry]]] = {}
    for owner, of_owner in owners.items():
        for flat, pieces in enumerate(of_owner):
            for piece, entry in zip(pieces, entries[owner][flat], strict=True):
                targets.setdefault((flat, piece.parameter), []).append((piece, entry))
    differs = -1
    for owner, sender in enumerate(senders):
        old = [_pieces(layout, owner) for layout, _ in layouts]
        own = shards.get(owner)
        items, digest = _sent(own if sender == rank else None, sender, group)
        if own is not None and _packed(own)[-1] != digest:
            differs = owner
        for flat, piece_number, key, value in items:
            piece = old[flat][piece_number]
            if key == VALUE and whole:
                values[flat][piece.parameter][piece.part] = value
            else:
                for target, entry in targets.get((flat, piece.parameter), ()):
                    _give(entry, target, piece, key, value, zeros)
    if shared is not None:
        shared.hold(entries[rank])
    return Prepared(newest + 1, group, rank, ranks, keep_next, values, entries, differs, shared)


def vote(made: Prepared) -> None:
    """Whoever passes knows that all ranks have prepared this change. RuntimeError on all ranks if a shard differs."""
    worst = torch.tensor(made.differs)
    try:
        dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=made.group)
    except dist.DistError:
        if made.differs < 0:
            raise  # whoever has seen a difference must not go on with either shard
    if worst >= 0:
        raise RuntimeError(
            f"ZeroOptimizer: of the ranks before, the shard of rank {int(worst)} and the copy of it on another rank "
            "have other bits: its state was changed by hand, or a memory is faulty. Load a checkpoint"
        )


def _pieces(layout: Any, owner: int) -> list[Piece]:
    return [Piece(*facts) for facts in layout.pieces(owner)]


def as_bytes(value: Any) -> torch.Tensor:
    """What torch.save writes, for a message."""
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def from_bytes(written: torch.Tensor) -> Any:
    """The inverse of as_bytes(), with weights_only."""
    return torch.load(io.BytesIO(written.numpy().tobytes()), weights_only=True)


def _packed(shard: Shard | Orphan) -> tuple[list[Item], torch.Tensor, bytes]:
    """Its items with tensors without memory in the place of long ones; those in a row; and a hash of everything."""
    items = shard.items()
    items.sort(key=lambda item: -item[-1].element_size() if _is_long(item[-1]) else 0)  # so that all are aligned
    long = [_bytes(value.contiguous()) for *_, value in items if _is_long(value)]
    head = [(*place, value.to("meta") if _is_long(value) else value) for *place, value in items]
    packed = torch.cat([*long, torch.empty(0, dtype=torch.uint8)])
    return head, packed, _digest(head, packed)


def _digest(head: Sequence[Item], packed: torch.Tensor) -> bytes:
    digest = hashlib.sha256(packed.numpy().data)
    for *place, value in head:
        kind = f"{value.dtype} {list(value.shape)}" if torch.is_tensor(value) else ""
        number = value.item() if torch.is_tensor(value) and not _is_long(value) else None
        digest.update(f"{place} {kind} {number if torch.is_tensor(value) else value!r};".encode())
    return digest.digest()


def _sent(shard: Shard | Orphan | None, sender: int, group: dist.ProcessGroup) -> tuple[list[Item], bytes]:
    """All items of a shard, on all ranks, and the hash of all. shard: on the sender."""
    written = packed = torch.empty(0, dtype=torch.uint8)
    if shard is not None:
        head, packed, digest = _packed(shard)
        written = as_bytes((head, len(packed), digest))
    length = torch.tensor(len(written))
    dist.broadcast(length, group=group, group_src=sender)
    if shard is None:
        written = torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(written, group=group, group_src=sender)
    head, size, digest = from_bytes(written)
    if shard is None:
        packed = torch.empty(size, dtype=torch.uint8)
    if size:
        dist.broadcast(packed, group=group, group_src=sender)
    if _digest(head, packed) != digest:
        raise RuntimeError(f"ZeroOptimizer: what rank {sender} has sent of the shards has changed on its way")
    found, at = [], 0
    for *place, value in head:
        if _is_long(value):
            value, at = packed[at : at + value.nbytes].view(value.dtype), at + value.nbytes
        found.append((*place, value))
    return found, digest


def _is_long(value: Any) -> bool:
    """Whether it has one value per element of a piece; others are numbers."""
    return torch.is_tensor(value) and value.dim() == 1


def _zeros(elements: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(elements, dtype=dtype)


def _give(
    entry: Entry, new: Piece, old: Piece, key: str, value: Any, zeros: Callable[[int, torch.dtype], torch.Tensor]
) -> None:
    """The part of an old piece's state that a new one of the same parameter overlaps."""
    begin, end = max(old.begin, new.begin), min(old.begin + old.length, new.begin + new.length)
    if begin >= end:
        return
    if not _is_long(value):
        entry[key] = copy.deepcopy(value)
        return
    if key not in entry:
        entry[key] = zeros(new.length, value.dtype)
    entry[key][begin - new.begin : end - new.begin] = value[begin - old.begin : end - old.begin]


def take_values(parameters: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Into the parameters, in their memory order."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = shaped(value, parameter)


def take_entries(shard: Shard, entries: Sequence[Sequence[Entry]]) -> None:
    """Into the shard's memory, the fp32 copies and the optimizer's state."""
    for flat, of_flat in zip(shard.flats, entries, strict=True):
        for piece, tensor, entry in zip(flat.pieces, flat.tensors, of_flat, strict=True):
            if VALUE in entry:
                flat.own(piece.bucket)[piece.place] = entry.pop(VALUE)
            if MASTER in entry:
                tensor.data.copy_(entry.pop(MASTER))
            if entry:
                shard.optimizer.state[tensor] = entry
