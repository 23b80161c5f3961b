"""What a wrapper with `micro_batches=M` does in each `ringdp.leaf`, and at the end of a step."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ringdp import _native
from ringdp.ddp.leaf_table import Agreed, Told, agreed, number_of, told
from ringdp.ddp.modes import group_like, ring_options
from ringdp.ddp.unaveraged import explained
from ringdp.elastic.leaf import Running, check_outside, running

_C = _native.load()


class LeafSteps:
    """The leaves that this rank has run since the latest average. Of one wrapper.

    A leaf begins with no gradients and with the buffers that the step began with, and leaves its gradients to the
    reducer. Until they are averaged, .grad holds tensors without memory, as reading it would be wrong.

    After a step all ranks know who has run which leaf, and with `overlap` they expect the same of the next one: then
    sums are sent while a rank's last leaf is computed (csrc/reducer/leaf_sums.h). Nothing is expected after a step
    whose leaves ran elsewhere than in the one before, or in which a leaf has changed gradients after its backward pass.
    They have a group of their own, as a rank may call other collectives before it sends. Over ringdp it has
    order="tree", and is used without overlap, too, where one reduction adds sums up.

    With `shard`, the ends of leaves are collective instead: the i-th leaves of all ranks are a round, after which each
    rank has its shards of the sums. A rank with fewer leaves takes part in the last rounds when it ends the step.
    """

    def __init__(self, ddp: Any, reducer: Any, micro_batches: int, *, overlap: bool, shard: bool) -> None:
        self.micro_batches = micro_batches
        self.shards = shard
        self._in_rounds: set[int] = set()  # leaves of all ranks that rounds have had
        self._wrong = False  # a round had leaves that cannot be right; equal on all ranks
        self._failed: list[str] = []  # leaves that could not be added; equal on all ranks
        self._ddp, self._reducer = weakref.ref(ddp), weakref.ref(reducer)
        self._told = Told()
        self._runs = False  # the running leaf is one of this wrapper
        self._begun = False  # and the reducer takes part in it
        self._may_overlap = overlap and not shard and ddp.device.type == "cpu"
        self._overlap = self._may_overlap  # in the current group
        self._group: dist.ProcessGroup | None = None  # of sums
        self._has_no_group = False
        self._sums_along_tree = False  # what that group reduces
        self._latest: list[list[int]] | None = None  # leaves by rank, in the step before
        self._expected: list[list[int]] | None = None
        self._expected_divisor = 0.0  # of a step with weights: 0, for unknown
        self._weight: float | None = None  # of the running leaf
        self._before: dict[str, torch.Tensor] | None = None  # buffers
        self._after: dict[str, torch.Tensor] | None = None  # those that leaf 0 has left
        self._optimizer_steps = 0
        self._has_kept_mean = False  # of the leaves that it still holds
        self._examine: Callable[[list[torch.Tensor | None]], object] | None = None
        self._ids = frozenset(map(id, reducer.parameters))
        self._fresh: Set[int] = frozenset()  # those of which no optimizer has used up the latest mean
        self._stand_ins = [
            _C.without_memory(
                parameter,
                f"the gradient of {name} is not averaged yet (micro_batches={micro_batches}): call ddp.finish_step() "
                "after the leaves of a step to read or clip gradients before optimizer.step(); what reads, changes or "
                "adds to gradients inside ringdp.leaf, and did not so in the steps before, needs overlap=False",
            )
            for name, parameter in zip(reducer.names, reducer.parameters, strict=True)
        ]
        reducer.set_leaf_stand_ins(self._stand_ins)
        # Code that uses the parameters after the wrapper is gone must not find stand-ins.
        weakref.finalize(self, _remove, reducer.parameters, self._stand_ins).atexit = False

    def enter(self) -> None:
        """At every forward or backward pass. RuntimeError outside of a leaf, or in one of another step."""
        now = running()
        if now is None:
            raise RuntimeError(
                f"DistributedDataParallel: micro_batches={self.micro_batches}, and a pass outside of ringdp.leaf: "
                "write `with ringdp.leaf(step, i):` around forward and backward of micro-batch i, or torch.no_grad()"
            )
        if self._runs:
            return
        if self._told.step not in (None, now.step):
            raise RuntimeError(
                f"DistributedDataParallel: micro-batch {now.index} of step {now.step} begins, and those of step "
                f"{self._told.step} are not averaged: call optimizer.step() or ddp.finish_step() after each step"
            )
        if not self._told.leaves:
            self._check_nothing_is_dropped()
        self._look(now)
        self._runs = True
        self._show(None)
        self._weight = None
        self._begun = 0 <= now.index < self.micro_batches and now.index not in self._told.leaves
        if self._begun:
            self._reducer().begin_leaf(now.index)

    def look(self) -> None:
        """At every pass without gradients: in a leaf it, too, begins with the buffers that the step began with."""
        if (now := running()) is not None:
            self._look(now)

    def _look(self, now: Running) -> None:
        if self in now.parts:
            return
        if now.parts and (self.shards or now.parts[0].shards):
            raise NotImplementedError(
                "DistributedDataParallel: shard_leaves=True with several wrappers in one leaf, where ranks with "
                "unequal numbers of leaves would mix them up: give each wrapper leaves of its own"
            )
        now.parts.append(self)
        if self._before is None:
            self._before = self._copies_of_buffers()
        else:
            self._set_buffers(self._before)

    def _check_nothing_is_dropped(self) -> None:
        """RuntimeError if a backward pass outside of a leaf has left a gradient, which the leaf would drop."""
        reducer = self._reducer()
        if reducer.may_be_unaveraged() and (late := [n for n, cause in reducer.unaveraged() if cause == "late"]):
            raise RuntimeError(explained(reducer, late[0], "late"))

    def backward(self, loss: torch.Tensor | None, weight: float | None) -> None:
        """A backward pass in a leaf. `weight`: see DistributedDataParallel.backward."""
        if weight is not None and not (weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"DistributedDataParallel.backward: weight={weight}, must be the number of samples")
        if loss is None and weight != 0:
            raise ValueError(f"DistributedDataParallel.backward: weight={weight} without a loss, must be 0")
        if loss is None and self._runs and self._ddp().zero_stage == 3:
            raise NotImplementedError(
                "DistributedDataParallel.backward: no loss after a forward pass at zero_stage=3, where ranks run their "
                "passes together: call backward(0 * loss, weight=0), or leave the forward pass out"
            )
        self.enter()
        if weight is not None:
            self._weight = weight + (self._weight or 0.0)
        if loss is not None:
            loss.backward()

    def end(self, leaf: Running) -> None:
        """The leaf is over: its gradients go to the sums. What cannot be right is an error when all ranks know it."""
        if not self._runs:  # only passes without gradients
            self._put_buffers_back()
            return
        if self._examine is not None:
            self._examine([parameter.grad for parameter in self._reducer().parameters])
            self.abandon()
            return
        self._runs = False
        self._told.step = leaf.step
        self._told.leaves.append(leaf.index)
        if self._weight is not None:
            self._told.weights[leaf.index] = self._weight
        if self.shards:
            self._end_leaf_of_round(leaf)
        elif self._begun:
            self._begun = False
            try:
                self._reducer().add_leaf()
            except BaseException:
                if leaf.index in self._reducer().leaves():  # what has failed is its sending
                    self._close(leaf)
                else:
                    self.forget()  # some buckets may have it
                raise
        self._close(leaf)

    def _end_leaf_of_round(self, leaf: Running) -> None:
        """Collective, also where the leaf fails. Then nothing is added on any rank, and the step ends with an error."""
        failed: Exception | None = None
        try:
            if self._begun:
                self._reducer().end_leaf_of_round()
        except Exception as error:
            failed = error
        try:
            if (sharded_model := self._ddp().sharded_model) is not None:
                sharded_model.follow(in_leaf=True)
            self._end_round(leaf, failed=failed is not None)
        except BaseException:
            self.forget()
            raise
        if failed is not None:
            self._close(leaf)
            raise failed

    def _end_round(self, own: Running | None, *, failed: bool = False) -> bool:
        """Adds what each rank has just run, if it has; returns whether any has. Collective, equal on all ranks.

        Nothing is added where a leaf cannot be right or has failed: the error is raised when the step ends.
        """
        ddp, reducer = self._ddp(), self._reducer()
        told = [0, 0, 0] if own is None else [1, own.step, own.index]
        told += [failed, self._wrong or bool(self._failed), len(self._in_rounds)]
        numbers = torch.tensor(told, dtype=torch.float64, device=ddp.device)
        table = [torch.empty_like(numbers) for _ in range(ddp.process_group.size())]
        dist.all_gather(table, numbers, group=ddp.process_group)
        rows = torch.stack(table).tolist()
        steps, leaves = {row[1] for row in rows if row[0]}, [int(row[2]) for row in rows if row[0]]
        self._failed += [f"rank {rank}, micro-batch {int(row[2])}" for rank, row in enumerate(rows) if row[3]]
        # A rank that has dropped the step after an error of its own has other counts.
        self._wrong = any(row[4] for row in rows) or len({row[5] for row in rows}) > 1 or len(steps) > 1
        new = set(leaves) - self._in_rounds
        self._wrong |= len(new) < len(leaves) or not new <= set(range(self.micro_batches))
        begun, self._begun = self._begun, False
        if leaves and not self._wrong and not self._failed:
            reducer.add_leaf_round([int(row[2]) if row[0] else -1 for row in rows])
            self._in_rounds |= new
        elif begun:
            reducer.abandon_leaf()
        return bool(leaves)

    def _close(self, leaf: Running) -> None:
        if leaf.index == 0:
            self._after = self._copies_of_buffers()
        self._put_buffers_back()
        self._show(self._stand_ins)

    def abandon(self) -> None:
        """The leaf has failed: as if it had not begun."""
        if self._begun:
            self._begun = False
            self._reducer().abandon_leaf()
        if self._runs:
            self._runs = False
            self._show(self._stand_ins if self._told.leaves else None)
        self._put_buffers_back()

    def _put_buffers_back(self) -> None:
        self._set_buffers(self._before or {})
        if not self._told.leaves:  # the step has not begun
            self._before = None

    def before_step(self, parameters: Set[int]) -> None:
        """Before an optimizer steps parameters (ids). Averages unless all that are the wrapper's have means."""
        own = self._ids & parameters
        if not own:
            return
        check_outside("the step is to end")
        if self._told.leaves or not own <= self._fresh:
            self.finish()
        self._fresh = self._fresh - own
        self._optimizer_steps += 1

    def finish(self, *, keep: bool = False) -> None:
        """Averages what all ranks' leaves have left. Collective; RuntimeError on all ranks names what is missing.

        keep: leaves stay until commit(), also after an error, so that another group can take the step up again.
        """
        check_outside("the step is to end")
        reducer, sharded_model = self._reducer(), self._ddp().sharded_model
        if keep and self._before is None:
            self._before = self._copies_of_buffers()  # this rank has no leaf, and is given those of leaf 0
        try:
            if sharded_model is not None:
                while sharded_model.follow() > 0:
                    self._end_round(None)
            elif self.shards:
                while self._end_round(None):
                    pass
            self._told.sent = reducer.send_leaves()
            result = agreed(self._by_rank(), self.micro_batches)
            if self._wrong or self._failed:
                who = "; ".join(self._failed) or "a rank that has dropped the step"
                raise RuntimeError(
                    f"DistributedDataParallel(shard_leaves): leaves of this step are missing after an error of {who}, "
                    "where it was raised: run the step again on all ranks"
                )
            as_sent = result.sent and result.leaves == self._expected
            as_sent &= self._expected_divisor in (0, result.divisor)
            reducer.average_leaves(result.leaves, result.used, result.divisor, as_sent, keep)
            self._share_buffers(result.rank_of(0))
        except BaseException:
            if not keep:
                self.forget()
                self._expect(None)
            raise
        if not keep:
            self._reset()
        self._fresh, self._has_kept_mean = self._ids, keep
        self._learn(result)
        if reducer.zero_stage >= 2:
            self._show(None)
            reducer.stand_ins.show(reducer.used())

    @contextmanager
    def examined(self, examine: Callable[[list[torch.Tensor | None]], object]) -> Iterator[None]:
        """Inside, gradients of leaves go to `examine` and not to the sums; of leaves that this rank does not hold."""
        self._examine = examine
        try:
            yield
        finally:
            self._examine = None

    def expect_nothing(self) -> None:
        """No leaf is sent while it is computed, until a step has ended again. On all ranks."""
        self._expect(None)

    def commit(self) -> None:
        """The step that finish(keep=True) has averaged is over on all ranks: its means may be used."""
        self._reset()

    def leaves(self) -> tuple[int | None, list[int]]:
        """Which leaves of which step this rank holds; None without one."""
        return self._told.step, list(self._told.leaves)

    def holds_sums_of_others(self) -> bool:
        """Whether a step has begun of which this rank has shards of other ranks' leaves (shard_leaves)."""
        return self.shards and bool(self._told.leaves or self._in_rounds)

    def has_unused_mean(self) -> bool:
        """Whether finish() has left shards of a mean that no optimizer has stepped, and nobody has dropped."""
        reducer = self._reducer()
        is_kept = bool(self._told.leaves) or self._has_kept_mean
        return bool(self._fresh) and not is_kept and any(reducer.stand_ins.kept(reducer.used()))

    def shown(self) -> set[int]:
        """Ids of the tensors without memory that are in .grad."""
        pairs = zip(self._reducer().parameters, self._stand_ins, strict=True)
        return {id(stand_in) for parameter, stand_in in pairs if parameter.grad is stand_in}

    def check_averaged(self, wanted_by: str) -> None:
        """RuntimeError if this rank has run leaves that are not averaged."""
        if self._told.leaves and not self._has_kept_mean:
            raise RuntimeError(
                f"{wanted_by} needs averaged gradients (micro_batches={self.micro_batches}): call ddp.finish_step() "
                "after the leaves of a step"
            )

    def forget(self) -> None:
        """Drops the leaves of a step that has failed."""
        self._show(None)
        self._set_buffers(self._before or {})
        self._reset()

    def _reset(self) -> None:
        self._reducer().drop_leaves()
        self._in_rounds, self._wrong, self._failed = set(), False, []
        self._begun = False
        self._told = Told()
        self._before = self._after = None
        self._has_kept_mean = False

    def abandon_step(self) -> None:
        """Drops the step on all ranks; every rank calls it."""
        self._reducer().send_leaves()  # what some ranks may have sent, and wait for
        self.forget()
        self._expect(None)

    def leave_group(self) -> None:
        """The wrapper gets another group, without the leaves that it holds."""
        self.forget()
        self.regroup()

    def regroup(self) -> None:
        """The wrapper gets another group, with the leaves that it holds; a mean that was not committed is dropped."""
        self._expect(None)
        self._has_kept_mean = False
        self._group = self._latest = None
        self._has_no_group = False
        self._reducer().set_group_of_leaf_sums(None, False)
        self._overlap = self._may_overlap
        self._optimizer_steps = 0  # ranks that have joined have none
        if self._before is not None:  # a step has begun, and is not over
            self._fresh = frozenset()
            self._show(self._stand_ins if self._told.leaves else None)
            self._put_buffers_back()

    def _learn(self, result: Agreed) -> None:
        """What to expect of the next step; the same on all ranks."""
        steady = self._latest in (None, result.leaves) and not result.changed
        self._latest = result.leaves
        self.make_group_of_sums()
        ahead = self._overlap and self._group is not None
        self._expect(result.leaves if ahead and steady else None, result.weighted)

    def make_group_of_sums(self) -> None:
        """If there is none yet and one is of use; it gets the memory of the one before. Collective."""
        if self._group is None and not self._has_no_group and self._has_use_for_group():
            self._group = self._own_group()
            self._reducer().set_group_of_leaf_sums(self._group, self._sums_along_tree)
        if self._group is None:
            self._reducer().release_memory_of_leaf_sums()

    def _has_use_for_group(self) -> bool:
        """To send in it while other collectives run, or as it sums along the tree. Equal on all ranks."""
        ddp = self._ddp()
        sums = ddp.device.type == "cpu" and ring_options(ddp.process_group, ddp.device) is not None
        return ddp.process_group.size() > 1 and not self.shards and (self._overlap or sums)

    def _expect(self, leaves: list[list[int]] | None, weighted: bool = False) -> None:
        divisor = float(self.micro_batches) if self._sums_along_tree and not weighted else 0.0
        if leaves is None or (leaves, divisor) != (self._expected, self._expected_divisor):
            self._reducer().expect_leaves(leaves or [], divisor)
        self._expected, self._expected_divisor = leaves, divisor

    def _own_group(self) -> dist.ProcessGroup | None:
        """Of the wrapper's ranks; None, and no overlap, where torch cannot make one on all ranks. Collective."""
        ddp = self._ddp()
        group, options = ddp.process_group, ring_options(ddp.process_group, ddp.device)
        found, why = None, "another rank could not make it"
        try:
            # An algorithm that is forced may have no plan for the tree; no bit depends on it.
            found = group_like(group, options, order="tree", algorithm="auto")
            if found.rank() != group.rank():  # new_group(sort_ranks=False)
                found, why = None, "torch numbers its ranks in another order"
        except (RuntimeError, AttributeError) as error:  # ranks in different numbers of groups; groups in Python
            why = str(error)
        have_one = torch.tensor(int(found is not None))
        dist.all_reduce(have_one, op=dist.ReduceOp.MIN, group=group)
        if have_one:
            self._sums_along_tree = options is not None
            return found
        self._has_no_group = True
        if self._overlap:
            self._overlap = False
            warnings.warn(
                f"DistributedDataParallel: micro_batches={self.micro_batches} without overlap, as its sums need a "
                f"process group of their own: {why}",
                stacklevel=2,
            )
        return None

    def _by_rank(self) -> list[Told]:
        ddp, reducer = self._ddp(), self._reducer()
        self._told.used, self._told.changed = reducer.used_in_leaves(), reducer.changed_in_leaves()
        self._told.optimizer_steps, self._told.expected = self._optimizer_steps, number_of(self._expected)
        numbers = self._told.numbers(self.micro_batches)
        own = torch.tensor(numbers, dtype=torch.float64, device=ddp.device)
        tables = [torch.empty_like(own) for _ in range(ddp.process_group.size())]
        dist.all_gather(tables, own, group=ddp.process_group)
        return [told(table.tolist(), self.micro_batches) for table in tables]

    def _share_buffers(self, owner: int) -> None:
        """Buffers become those that leaf 0 has left on the rank that ran it."""
        ddp = self._ddp()
        if self._after is not None:
            self._set_buffers(self._after)
        if self._buffers() and ddp.process_group.size() > 1:
            with torch.no_grad():
                ddp._default_broadcast_coalesced(authoritative_rank=owner)

    def _buffers(self) -> dict[str, torch.Tensor]:
        ddp = self._ddp()
        ddp._assign_modules_buffers()  # a module may have replaced one
        found: dict[str, torch.Tensor] = ddp.named_module_buffers
        return found

    def _copies_of_buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer.detach().clone() for name, buffer in self._buffers().items()}

    @torch.no_grad()
    def _set_buffers(self, values: Mapping[str, torch.Tensor]) -> None:
        """What a leaf has registered, or made of another shape, such as a cache, stays as it is."""
        for name, buffer in self._buffers().items():
            if (value := values.get(name)) is not None and value.shape == buffer.shape:
                buffer.copy_(value)

    def _show(self, gradients: Sequence[torch.Tensor] | None) -> None:
        for number, parameter in enumerate(self._reducer().parameters):
            parameter.grad = None if gradients is None else gradients[number]


def _remove(parameters: Sequence[torch.Tensor], stand_ins: Sequence[torch.Tensor]) -> None:
    for parameter, stand_in in zip(parameters, stand_ins, strict=True):
        if parameter.grad is stand_in:
            parameter.grad = None
