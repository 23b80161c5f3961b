"""The part of ZeroOptimizer that goes on in another group, and lets shards outlive their ranks: see regroup.py."""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist

from ringdp.zero.flat import FlatParameters
from ringdp.zero.gradients import Gradients
from ringdp.zero.in_flight import InFlightGathers
from ringdp.zero.regroup import (
    GathersLater,
    GradientsOfNext,
    Kept,
    Place,
    Prepared,
    Shard,
    check_keep_next,
    check_regroups,
    exchanged,
    layout_for,
    prepared,
    take_entries,
    take_values,
    vote,
)
from ringdp.zero.shared_shards import SharedShards, can_share
from ringdp.zero.steps import WholeStep
from ringdp.zero.unit_storage import ShardedParameters

_FIXED = (
    "is not possible while this rank's shard is to outlive it (regroup with keep_next, as elastic.survive does), as "
    "what other ranks have or read of it would not follow: do it before train() or after it"
)
_LEFT: list[SharedShards] = []


class Regrouped:
    """Base of ZeroOptimizer, which has the other attributes."""

    process_group: dist.ProcessGroup
    _place: Place
    _prepared: Prepared | None
    _next: Kept | SharedShards | None  # those of other ranks, after regroup(keep_next=1)

    def _init_regroups(self) -> None:
        self._place = Place(0, self.process_group.rank(), self.process_group.size())
        self._prepared = self._next = None

    def regroup(
        self,
        group: dist.ProcessGroup,
        *,
        has_state: bool = True,
        keep_next: int = 0,
        in_shared_memory: bool = False,
    ) -> None:
        """Goes on in another group, whatever the number of its ranks, with shards cut anew. Collective over `group`.

        On the CPU, between steps, after the wrapper's regroup(). All old shards are sent to all ranks, but not
        settings(). The shard of a rank that is not in `group` is lost, unless another rank keeps it, too.

        has_state: False on a rank that joins: it gets all values, and has a state then.
        keep_next: K > 0: from then on each rank also keeps and steps the shard of the rank K places after it, which may
            die without loss; the same K on all ranks. With several ranks per host, as many: hosts may be lost then.
            step() does not communicate: share_gradients() comes before it, and gather() after it, on all ranks.
            Until release_next() state and param groups can be read and saved, but not changed or loaded.
        in_shared_memory: with keep_next, where all ranks map each other's memory and ringdp's kernels step (SGD, Adam,
            AdamW of float32, or with master_dtype), the shards of all ranks outlive them there instead, whatever
            number dies, also in step(): nothing is stepped twice. Gradients are final at share_gradients().
            A rank for which steps_behind() is 1 makes that step before its next regroup().

        RuntimeError names a shard that is lost, or that differs from its copy. Where a call fails because a rank has
        died, nothing has changed; or the next call makes the change that some ranks have made.
        """
        check_regroups(self._class, self._flats, self._gathers_in_flight)
        check_keep_next(keep_next, group.size())
        self._check_can_regroup(group)
        later = self._later
        is_torn = later is not None and not later.is_complete()
        self._gathers_in_flight.forget()
        try:
            self._change(group, has_state, keep_next, in_shared_memory)
        except BaseException:
            if is_torn and self._later is later:
                later.hide()
            raise

    @property
    def regroups(self) -> int:
        """How often the shards that this rank has were cut anew."""
        return self._place.changes

    def share_gradients(self) -> None:
        """Before each step since regroup(keep_next=1), once gradients are clipped. Collective where copies are kept."""
        if self._next is not None:
            self._next.share(self.process_group)

    def steps_behind(self) -> int:
        """With in_shared_memory: 1 where a rank, which may be dead, has begun a step that this one has only shared."""
        if not isinstance(self._next, SharedShards) or self._has_been_taken():
            return 0
        return self._next.behind()

    def leave_shards(self) -> None:
        """This rank fails, though it lives: what others may read of its shard stays as long as its process."""
        if isinstance(self._next, SharedShards):
            _LEFT.append(self._next)

    def gather(self) -> None:
        """After each step since regroup(keep_next=1). Collective below stage 3: makes parameters whole."""
        if self._later is not None:
            self._later.gather_all()

    def release_next(self) -> None:
        """Ends keep_next: the shard of the next rank is dropped, and step() gathers again.

        RuntimeError between step() and gather().
        """
        self.check_whole()
        self._next = None
        if self._later is not None:
            self._set_gathers(InFlightGathers())
            self._stepping = self._whole_step()

    def _exchanged(self, group: dist.ProcessGroup, has_state: bool, wants: tuple[int, int]) -> list[Place]:
        own = replace(self._place, **self._next.place()) if self._next is not None else self._place
        own = own if has_state else Place(-1, 0, 1)
        ready = self._prepared.number if self._prepared is not None else -1
        return exchanged(replace(own, prepared=ready, wants_next=wants[0], wants_shared=wants[1]), group)

    def _check_can_regroup(self, group: dist.ProcessGroup) -> None:
        """RuntimeError names what has to come before. NotImplementedError with overlap_with_ddp."""
        if self.steps_in_backward:
            raise NotImplementedError("ZeroOptimizer.regroup: overlap_with_ddp=True: leave that out")
        if self._wrapper is not None and self._wrapper.process_group is not group:
            raise RuntimeError("ZeroOptimizer.regroup: the wrapper is in another group: call ddp.regroup(group) before")
        self._stepping.check()
        if self._next is not None:
            self._next.check_complete()
        if self.stage == 3:
            self._wrapper.sharded_model.check_free()

    def _change(self, group: dist.ProcessGroup, has_state: bool, keep_next: int, in_shared_memory: bool) -> None:
        """What regroup() does once nothing is in its way."""
        if self._has_been_taken():
            self._take_prepared()
            has_state = True
        flats = [*self._flats, *self._frozen()]
        shares = in_shared_memory and keep_next > 0 and can_share(group, self._optimizer, flats, whole=self.stage < 3)
        wants = keep_next, int(shares)
        places = self._exchanged(group, has_state, wants)
        newest = max(place.changes for place in places)
        if any(place.changes < newest == place.prepared for place in places):  # one has failed when some had changed
            if self._place.changes < newest and self._prepared is not None and self._prepared.number == newest:
                self._take_prepared()
                has_state = True
            places = self._exchanged(group, has_state, wants)
        self._prepared = None  # no rank needs it any more
        shard = Shard([*self._flats, *self._frozen()], self._optimizer)
        self._prepared = prepared(
            places, group, shard, self._next if has_state else None, has_state=has_state, whole=self.stage < 3
        )
        vote(self._prepared)
        self._take_prepared()

    def _has_been_taken(self) -> bool:
        """Whether a rank, which may be dead, has made the change that this one has prepared."""
        return self._prepared is not None and self._prepared.shared is not None and self._prepared.shared.is_taken()

    def _take_prepared(self) -> None:
        made, self._prepared = self._prepared, None
        if made.shared is not None:
            made.shared.take()
        keep_next = made.keep_next % made.ranks if made.shared is None else 0  # 0 also where this is the only rank
        layouts = [layout_for(flat, made.ranks) for flat in (*self._flats, *self._frozen())]
        self.process_group, rank, ranks = made.group, made.rank, made.ranks
        parameters = [flat.parameters for flat in self._flats]
        self._next = None
        self._flats.clear()  # before memory for new ones is taken
        self._optimizer.param_groups.clear()
        self._optimizer.state.clear()
        if self.stage == 3:
            self._wrapper.sharded_model.regroup(made.group, *layouts)
            trainable = self._wrapper.sharded_model.trainable
            self._flats.append(ShardedParameters(trainable, made.group, self._master_dtype))
        for members, layout, values in zip(parameters, layouts, made.values, strict=False):
            take_values(members, values)
            values.clear()
            self._flats.append(FlatParameters(members, layout, made.group, self._master_dtype))
        self._place = Place(made.number, rank, ranks)
        self._optimizer = self._make_inner(self._flats)
        frozen = self._frozen()
        shard = Shard([*self._flats, *frozen], self._optimizer)
        take_entries(shard, made.entries[rank])
        self._set_gathers(GathersLater(self._flats, self._wrapper) if made.keep_next else InFlightGathers())
        if made.shared is not None:
            members = [group["params"] for group in self.param_groups]
            self._next = made.shared.serve(shard, self._sources, members)
        self._stepping = self._whole_step()
        self._consolidated = None
        if keep_next:
            owner = (rank + keep_next) % ranks
            flats = [flat.as_owned_by(owner) for flat in self._flats]
            shard = Shard([*flats, *(flat.as_owned_by(owner) for flat in frozen)], self._make_inner(flats))
            take_entries(shard, made.entries[owner])
            gradients = GradientsOfNext(self._wrapper.reducer, keep_next) if self.stage >= 2 else None
            sources: list[Gradients] = self._sources if gradients is None else [gradients]
            step = WholeStep(flats, sources, shard.optimizer, GathersLater(flats, self._wrapper), self._weak_begin())
            self._next = Kept(keep_next, owner, shard, step, gradients)

    @property
    def _later(self) -> GathersLater | None:
        """The gathers after regroup(keep_next=True), also if there is no other rank."""
        return self._gathers_in_flight if isinstance(self._gathers_in_flight, GathersLater) else None

    def _set_gathers(self, gathers: InFlightGathers) -> None:
        gathers.exposed = self._gathers_in_flight.exposed
        self._gathers_in_flight = gathers
        if self.stage == 3:
            self._wrapper.sharded_model.why_fixed = self._why_fixed()

    def _why_fixed(self) -> str:
        """Why the state cannot be changed; '' if it can."""
        return "" if self._later is None else _FIXED
