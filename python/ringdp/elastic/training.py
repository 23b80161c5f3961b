"""`ringdp.elastic.survive`: a training loop that goes on when ranks die and others come, with the bits of one process.

A step is applied by all ranks or by none: own micro-batches (leaves), their mean, a vote, the optimizer. A rank votes
when it has the whole mean, and applies it when all have voted. So members differ by at most one step, and who is behind
has the mean that it lacks. After a fault the members that live meet in the next world, tell each other where they are,
deal out the leaves that were lost, and go on; leaves that live on are not computed again.

    with a vote passed somewhere    whoever has not applied the step has its mean, and applies it now
    with no vote passed             the step is taken up again, with the leaves that its members hold
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist

from ringdp import _native
from ringdp.ddp.agreement import line_of
from ringdp.ddp.modes import ring_options
from ringdp.elastic.progress import Progress
from ringdp.elastic.recovery import Recovery
from ringdp.elastic.shares import improved
from ringdp.elastic.state import WithoutShards, add_bits, hand_on
from ringdp.elastic.world_loop import Body, WorldLoop, check_arguments
from ringdp.elastic.worlds import WorldIsOver
from ringdp.text.arguments import check_function, check_number, check_whole_number
from ringdp.text.units import counted, names
from ringdp.zero.clip import clip_grad_norm_
from ringdp.zero.optimizer import ZeroOptimizer
from ringdp.zero.regroup import gathered

_C = _native.load()
_MAX = dist.AllreduceOptions()
_MAX.reduceOp = dist.ReduceOp.MAX
_DEAL_EVERY = 10  # steps, by speed
_DIGEST_BYTES = 16


def survive(
    *,
    model: Any,
    optimizer: torch.optim.Optimizer,
    min_ranks: int | None = None,
    apply: Callable[[], object] | None = None,
    after: Callable[[int], object] | None = None,
    save: Callable[[int], object] | None = None,
    save_every: int = 1,
    state: Sequence[Any] = (),
    clip: float | None = None,
    patience: float = 30.0,
    speed: Literal["even", "auto"] = "even",
    shards: Literal["auto", "copies"] = "auto",
) -> Callable[[Body], Training]:
    """Makes `train(step, leaves)` a training that survives the death of ranks, under `ringdp run --min-ranks`.

        @ringdp.elastic.survive(model=ddp, optimizer=optimizer)
        def train(step, leaves):
            for leaf in leaves:
                with ringdp.leaf(step, leaf):
                    loss_of(ddp, step, leaf).backward()

        train(300)

    The function runs the micro-batches that it is given, and nothing else: `leaves` are those of this rank in step
    `step`. It is called again with others of the same step when a rank has died, and not at all where this rank has
    none. `train(steps, first=0)` runs steps first to steps - 1 on all ranks and returns when all have applied the last.

    model: a ringdp.DistributedDataParallel with micro_batches=M and any zero_stage over the default process group.
    optimizer: of torch, or a ZeroOptimizer, whose shards outlive their ranks as `shards` says.
    apply: what a step does with the mean gradients once all ranks have them, without communication and without random
        numbers; default: optimizer.step() and optimizer.zero_grad(). Here schedulers step. With a ZeroOptimizer
        parameters cannot be read after its step().
    after: called with each step once, when it is applied and parameters are whole: averages of weights, saved files.
        A rank that dies may not have come to it. It must not communicate either, nor with a ZeroOptimizer change
        parameters; at zero_stage=3 it has none.
    save: called on all ranks with each step of which so many, save_every, were applied since step 0; it may
        communicate, as ringdp.checkpoint.save does (save_async would outlive the group), but not change the state.
        Where a rank dies before all have returned from it the next world calls it again, on all ranks.
    clip: gradients are clipped to this norm before the step, as by ringdp.clip_grad_norm_; train.norm is what it was.
    state: further objects with state_dict() and load_state_dict(), such as schedulers, which ranks that join get with
        the model's and the optimizer's. They are sent by torch.save and read with weights_only.
    min_ranks: a world of fewer ranks waits for others; default: that of `ringdp run`.
    patience: seconds for which a rank that is stopped (SIGSTOP) is waited for; then it is killed and replaced. One that
        hangs otherwise is when collectives, and then the next world, have waited for it for the group's timeout.
    speed: "auto" deals micro-batches by how fast each rank has run its own, again and again; "even" to all alike. The
        bits are the same. A rank that is too slow for even one has none until the next world.

    shards: "auto" leaves shards in memory that all ranks of a host map, where all are on one and ringdp's kernels step
        them (SGD, Adam, AdamW of float32, or with master_dtype): any number of ranks may die, and nothing is stepped
        twice. Elsewhere, and with "copies", each rank also keeps and steps the shard of another one, and a shard is
        lost where both die before the next world begins: then the job ends with an error.

    A rank that joins computes one micro-batch that a member computes, too, and is refused if the bits differ.
    The default process group is replaced, so that rank and world size change; groups of the program's own end with it.
    A rank that joins runs the program's beginning in a world of one rank. Under another launcher, and in one process,
    the same program trains, and a fault ends it. ValueError and NotImplementedError name what is refused.
    """
    if getattr(model, "zero_stage", None) is None or model.reducer.leaf_steps is None:
        raise ValueError("survive: model must be a ringdp.DistributedDataParallel with micro_batches=M")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"survive: optimizer is a {type(optimizer).__name__}, must be one of torch, or a ZeroOptimizer"
        )
    if model.zero_stage and not isinstance(optimizer, ZeroOptimizer):
        raise ValueError(f"survive: optimizer must be a ringdp.ZeroOptimizer with zero_stage={model.zero_stage}")
    if model.reducer.leaf_steps.shards:
        raise NotImplementedError(
            "survive: shard_leaves=True, with which a rank that dies takes sums of all leaves with it: leave it out"
        )
    if model.device.type != "cpu":
        raise NotImplementedError(f"survive: the model is on {model.device}, and only models on the CPU survive")
    if model.process_group is not dist.group.WORLD or ring_options(model.process_group, model.device) is None:
        raise ValueError(
            "survive: the model's process group must be the default one, of backend ringdp: it is made anew after a "
            "fault"
        )
    given = {"min_ranks": min_ranks, "patience": patience, "after": after, "save": save, "save_every": save_every}
    check_arguments("survive", **given, state=state)
    check_function("survive: apply", apply)
    if clip is not None:
        check_number("survive: clip", clip, lambda it: it > 0, "a number above 0")
    if speed not in ("even", "auto"):
        raise ValueError(f"survive: speed={speed!r}, must be 'even' or 'auto'")
    if shards not in ("auto", "copies"):
        raise ValueError(f"survive: shards={shards!r}, must be 'auto' or 'copies'")

    def decorate(body: Body) -> Training:
        training = Training(body, model, optimizer, tuple(state), by_speed=speed == "auto")
        training.min_ranks, training.patience, training.clip = min_ranks, float(patience), clip
        training.apply, training.after = apply or training.step_optimizer, after
        training.save, training.save_every = save, save_every
        training.shards = shards
        return training

    return decorate


class Training(WorldLoop):
    """What survive() makes of a function. norm: of the gradients of the latest step, with clip."""

    clip: float | None = None
    norm = 0.0
    apply: Callable[[], object]
    shards: Literal["auto", "copies"] = "auto"

    def __init__(
        self, body: Body, model: Any, optimizer: torch.optim.Optimizer, state: tuple[Any, ...], *, by_speed: bool
    ) -> None:
        super().__init__(body)
        self._model, self._optimizer = model, optimizer
        self._zero = optimizer if isinstance(optimizer, ZeroOptimizer) else None
        module = model.module if model.sharded_model is None else WithoutShards(model)
        self._state = (module, optimizer if self._zero is None else self._zero.settings(), *state)
        self._leaf_steps = model.reducer.leaf_steps
        self._micro_batches = self._leaf_steps.micro_batches
        self._first = 0
        self._mean_of = -1  # the step whose whole mean is in .grad and not applied
        self._dealt: Sequence[list[int]] = []  # leaves that are to be run in the step, by rank
        self._todo: list[int] = []  # by this one
        self._by_speed = by_speed
        self._shares: list[int] = []
        self._leaf_seconds: list[float] = []  # by rank, as the latest vote has told; 0: unknown
        self._own_leaf_seconds: deque[float] = deque(maxlen=_DEAL_EVERY)  # in the latest steps
        self._is_examined = True
        self._to_examine: list[int] = []  # ranks of this world

    def __call__(self, steps: int, *, first: int = 0) -> None:
        """Runs the steps first to steps - 1. Collective. RuntimeError where the job cannot go on."""
        for name, number in (("steps", steps), ("first", first)):
            check_whole_number(f"train: {name}", number, 0)
        self._begin(steps, first)
        self._first, self._mean_of = first, -1
        self._model.reducer.keep_layout()
        self._train()
        if self._zero is not None and self._member is not None:
            self._zero.release_next()

    def _start_alone(self) -> None:
        self._deal()

    def _join_job(self) -> None:
        self._is_examined = self._has_state
        if self._zero is None:
            self._member.begin_training(self.patience)

    def _entered(self) -> None:
        if self._zero is not None:  # until now shards had one owner
            self._member.begin_training(self.patience)

    def _give_up(self) -> None:
        if self._zero is not None:
            self._zero.leave_shards()

    def step_optimizer(self) -> None:
        """The default of `apply`."""
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _run(self) -> bool:
        """Steps until all are applied (True), or until another world waits to begin."""
        self._save()  # if that had to wait for this world
        while self._applied < self._steps:
            if self._to_examine:
                self._examine()
            if self._todo:
                begin = time.monotonic()
                self._body(self._applied, tuple(self._todo))
                self._own_leaf_seconds.append((time.monotonic() - begin) / len(self._todo))
            self._check_leaves()
            self._leaf_steps.finish(keep=True)
            if self.clip is not None:
                self.norm = float(clip_grad_norm_(self._model.parameters(), self.clip))
            if self._zero is not None:
                self._zero.share_gradients()
            self._mean_of = self._applied
            changes = self._vote()
            self._commit()
            if self._zero is not None:
                self._zero.gather()
            self._end_step()
            self._save()
            self._deal()
            if changes:
                return False
        if self._member is not None:
            dist.barrier()  # whoever passes knows that all ranks have applied the last step
        return True

    def _check_leaves(self) -> None:
        step, leaves = self._leaf_steps.leaves()
        missing = [leaf for leaf in self._todo if step != self._applied or leaf not in leaves]
        if missing:
            raise RuntimeError(
                f"survive: {self._body.__name__}({self._applied}, {self._todo}) has returned without "
                f"{names(missing, 'micro-batch')}: it runs each of them, inside ringdp.leaf(step, leaf)"
            )

    def _vote(self) -> bool:
        """Nobody passes before all ranks have the mean. Whether a newer world is there; the same on all ranks."""
        group = dist.group.WORLD
        own = [float(self._sees_newer_world()), *[0.0] * group.size()]
        own[1 + group.rank()] = min(self._own_leaf_seconds, default=0.0)  # what nothing has disturbed
        told = torch.tensor(own, dtype=torch.float64)
        group.allreduce([told], _MAX).wait()  # dist.all_reduce takes longer than the ranks need to meet
        changes, *self._leaf_seconds = told.tolist()
        return bool(changes)

    def _commit(self) -> None:
        """Applies the mean, once."""
        self._leaf_steps.commit()
        self._mean_of = -1
        try:
            self.apply()
        except dist.DistError as error:  # would pass for a fault before the step, which would come again
            if self._zero is not None and self._member is None:
                raise  # of step(), which gathers parameters there
            raise RuntimeError(
                "survive: apply() must not communicate: ranks may be at different steps there"
            ) from error
        self._applied += 1

    def _end_step(self) -> None:
        """Parameters are whole."""
        before = self._versions()
        self._call_after(self._applied - 1)
        changed = [name for name, version in self._versions().items() if version != before[name]]
        if changed:  # on this rank, and perhaps not on those whose shards it keeps
            raise RuntimeError(
                f"survive: after() has changed parameter {changed[0]}, which a ZeroOptimizer does not allow: change it "
                "before train(), or use a torch optimizer"
            )

    def _save(self) -> None:
        self._call_save(self._applied - 1, is_time=self._applied % self.save_every == 0)

    def _versions(self) -> dict[str, Any]:
        """What changes where a parameter is written, of those in shards."""
        is_open = self.after is not None and self._zero is not None and self._model.sharded_model is None
        named = self._model.module.named_parameters() if is_open else ()
        return {name: (parameter._version, parameter.data_ptr()) for name, parameter in named}

    def _deal(self) -> None:
        """The leaves of a step that begins."""
        ranks = dist.get_world_size()
        if len(self._shares) != ranks:
            self._shares = _C.even_shares(self._micro_batches, ranks)
            self._own_leaf_seconds.clear()
        elif self._by_speed and self._applied % _DEAL_EVERY == 0:
            self._shares = improved(self._shares, self._leaf_seconds)
        self._deal_to_all(_C.allot_leaves(self._shares))

    def _deal_to_all(self, by_rank: Sequence[list[int]]) -> None:
        self._dealt, self._todo = by_rank, by_rank[dist.get_rank()]

    # From one world to the next.

    def _take_up(self, cause: str) -> Recovery:
        """The state of this rank, and its leaves of the running step."""
        member = self._member
        places = self._exchange()
        ahead = self._ahead_of(places)
        was_behind = self._has_state and self._applied < ahead
        if was_behind:
            self._apply_late(ahead)
        self._mean_of = -1
        self._model.regroup(dist.group.WORLD)  # drops a mean that nobody has applied; may fail after that
        if self._zero is not None:
            has_shards = self._has_state or self._zero.regroups > 0  # it may have lacked the rest of the state only
            keeps = {"keep_next": member.world.shift(), "in_shared_memory": self.shards == "auto"}
            self._zero.regroup(dist.group.WORLD, has_state=has_shards, **keeps)
        if self._has_state:
            self._end_step()  # if that had to wait for this world
        self._hand_on_state(places, ahead)
        self._saved = max(place.saved for place in places if place.applied >= 0)
        again = self._deal_out(places)
        return Recovery(member.world.epoch, member.members(), self._applied, cause, again, was_behind)

    def _all_lines(self) -> list[str]:
        """How the model is wrapped and trained, and the model."""
        return [
            f"state= has {counted(len(self._state), 'part')}",
            f"clip={self.clip!r}",
            f"speed={'auto' if self._by_speed else 'even'}",
            f"shards={self.shards}",
            *self._of_optimizer(),
            *self._model._settings,
            *(line_of(number, *named) for number, named in enumerate(self._model.module.named_parameters())),
        ]

    def _of_optimizer(self) -> list[str]:
        """Its kind, and whose parameters are in which group, in their order."""
        name_of = {id(parameter): name for name, parameter in self._model.module.named_parameters()}
        kind = type(self._optimizer).__name__ if self._zero is None else self._zero.kind()
        groups = ([name_of.get(id(p)) for p in group["params"]] for group in self._optimizer.param_groups)
        return [f"optimizer {kind}", *(f"group {number} of {of_group}" for number, of_group in enumerate(groups))]

    def _exchange(self) -> list[Progress]:
        step, leaves = self._leaf_steps.leaves()
        applied = self._applied if self._has_state else -1
        held = leaves if step == self._applied else []
        seen = applied + (self._zero.steps_behind() if self._zero is not None and self._has_state else 0)
        own = Progress(applied, seen, self._mean_of, self._first, self._saved, self._is_examined, held)
        return [Progress.of(numbers) for numbers in gathered(own.numbers(self._micro_batches), dist.group.WORLD)]

    def _ahead_of(self, places: Sequence[Progress]) -> int:
        """How many steps those that have applied the most have, also dead ones; the state of a new job is rank 0's."""
        if all(place.applied < 0 for place in places):
            if self._zero is not None and self._zero.regroups > 0:
                raise RuntimeError(
                    "survive: all ranks that had the whole state are gone, and this one has only shards of it: restart "
                    "from a checkpoint"
                )
            places[0].applied = places[0].seen = places[0].first
            if dist.get_rank() == 0:
                self._has_state = True
                print(
                    "ringdp.elastic: no member with the state of the training is left: it begins at step "
                    f"{self._first}, with what the program has loaded",
                    file=sys.stderr,
                    flush=True,
                )
        if not any(place.is_examined for place in places):  # those with which the others could be compared are gone
            first = next(rank for rank, place in enumerate(places) if place.applied >= 0)
            places[first].is_examined = True
            self._is_examined |= dist.get_rank() == first
        return max(place.seen for place in places)

    def _apply_late(self, ahead: int) -> None:
        if self._applied != ahead - 1 or self._mean_of != self._applied:
            raise RuntimeError(
                f"survive: this rank has applied {self._applied} steps and others {ahead}, without the mean that it "
                "lacks: a defect of ringdp"
            )
        self._commit()

    def _hand_on_state(self, places: Sequence[Progress], ahead: int) -> None:
        """Newcomers get it, each from one of the ranks that had it."""
        if hand_on(self._state, [place.applied >= 0 for place in places]):
            self._applied = self._ended = ahead
            self._has_state = True

    def _deal_out(self, places: Sequence[Progress]) -> list[int]:
        """The leaves that nobody holds; returns them, unless they are all."""
        self._shares = []
        self._to_examine = [rank for rank, place in enumerate(places) if not place.is_examined]
        held = {leaf for place in places if place.applied == self._applied for leaf in place.held}
        if not held:
            self._deal()
            return []
        missing = [leaf for leaf in range(self._micro_batches) if leaf not in held]
        ranks = dist.get_world_size()
        self._deal_to_all([missing[rank::ranks] for rank in range(ranks)])
        return missing

    def _examine(self) -> None:
        """Newcomers compute a leaf that a member computes as well, and are refused where its bits differ.

        It is one that nobody holds; where there is none in this step, nobody computes anything, and the next one has.
        """
        leaf = next((of_rank[0] for of_rank in self._dealt if of_rank), None)
        if leaf is None:
            return
        self._leaf_steps.expect_nothing()  # as the exam is no part of the step
        newcomers, rank = self._to_examine, dist.get_rank()
        examiner = next(other for other in range(dist.get_world_size()) if other not in newcomers)
        own = self._digest_of_leaf(leaf) if rank in (examiner, *newcomers) else bytes(_DIGEST_BYTES)
        if self._model.sharded_model is not None:
            self._model.sharded_model.follow()  # in the gathers of those that compute
        digests = gathered(own, dist.group.WORLD)
        wrong = [newcomer for newcomer in newcomers if digests[newcomer] != digests[examiner]]
        if rank in wrong:
            raise RuntimeError(
                f"survive: micro-batch {leaf} of step {self._applied} has other bits on this rank than on rank "
                f"{examiner}: another processor or library, or a loss that depends on more than step and micro-batch"
            )
        if wrong:
            raise WorldIsOver(f"{names(wrong)} would compute other bits, and must leave")
        self._is_examined, self._to_examine = True, []

    def _digest_of_leaf(self, leaf: int) -> bytes:
        digest = hashlib.sha256()

        def take(gradients: list[torch.Tensor | None]) -> None:
            for number, gradient in enumerate(gradients):
                if gradient is not None:
                    digest.update(str(number).encode())
                    add_bits(digest, gradient)

        with self._leaf_steps.examined(take):
            self._body(self._applied, (leaf,))
        return digest.digest()[:_DIGEST_BYTES]
