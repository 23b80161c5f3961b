"""`ringdp.DiLoCo`: workers that step alone and meet every H steps, with the bits of one process that plays them all."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ringdp.checkpoint.holder import Holder
from ringdp.checkpoint.holders import unwrapped
from ringdp.checkpoint.piece import CheckpointError
from ringdp.compress.exchange import Allotment
from ringdp.ddp.agreement import Comparison, line_of
from ringdp.elastic.leaf import leaf
from ringdp.elastic.member import this_member
from ringdp.local import state
from ringdp.local.fragments import Fragment, cut
from ringdp.local.holder import LocalHolder
from ringdp.local.kept_meetings import KeptMeetings
from ringdp.local.meetings import Meetings, share
from ringdp.local.options import Options, check_apart, check_inner, trained
from ringdp.local.rounds import Composition, Rounds
from ringdp.local.schedule import Schedule
from ringdp.local.workers import Inner, Workers
from ringdp.text.units import byte_size, counted, names

Result = TypeVar("Result")
_OUTER = -1  # the block of outer(), where others have the number of a worker


class DiLoCo:
    """Workers that step alone and meet every `every` steps: DiLoCo (arXiv 2311.08105) and its family.

        local = ringdp.DiLoCo(model, lambda params: torch.optim.AdamW(params, lr=3e-4), workers=8, every=20)
        for step in range(steps):
            for worker in local.workers():        # those that this rank plays
                with local.worker(worker):        # its parameters are in place; the inner step is at the block's end
                    loss_of(model, step, worker).backward()
            local.step()

    With one worker on each rank `loss.backward(); local.step()` is enough: step() makes the inner step and drops the
    gradients. Only a block draws random numbers (dropout) independently of N: those of `ringdp.leaf(step, worker)`.

    Each worker walks away from the outer parameters, which are float32 and the same everywhere. When workers meet, the
    mean of what they have walked is the gradient of an outer step of SGD, and they go on from there. The result has the
    bits of `ringdp.testing.one_process_local`, on any number N <= workers of ranks, at every step.

    model: a plain module, which begins with rank 0's values; outside outer() it has those of one worker.
        inner(parameters): makes the inner optimizer of a worker, or a list of several; called once for each worker that
        this rank plays, and once more by survive_local, which checks that each call makes a new one.
    outer_lr, momentum, nesterov: of the outer SGD. outer_lr=1, momentum=0 is local SGD. Without momentum nesterov is of
        no effect.
    start: the first `start` steps are synchronous: all workers make the inner step with the mean of their gradients,
        with the bits of `micro_batches=workers` (post-local SGD, arXiv 1808.07217).
    fragments, delay, alpha: Streaming DiLoCo (arXiv 2501.18512): parameters meet in so many parts, one after the other
        (`schedule`); what they have walked is summed while `delay` more steps are made; what arrives is mixed with
        alpha times a worker's own values.
    compress: "int8", "int4", or for the largest 1.6 % of what workers have walked "topk" and "topk-2bit" (SparseLoCo,
        arXiv 2508.15706): codes travel, in both directions, with error feedback at both ends. Synchronous steps send
        float32.
    quorum, grace, rounds: nobody waits for the slowest workers. A worker that has made its `every` steps contributes
        and waits for an outer step, which is made as soon as `quorum` workers have contributed and `grace` seconds have
        passed, or all have. Its gradient is the mean over those in it; who comes later is in the next one, with what it
        has walked from where it began. After `rounds` outer steps, in all, `finished` ends each rank's loop:

            while not local.finished:
                for worker in local.workers():    # those that do not wait
                    with local.worker(worker):
                        loss_of(model, local.steps_of(worker), worker).backward()
                local.step()

        Setting `local.rounds` goes on. Bits depend on who was in which outer step, which is `log`, and on nothing else.
        Not with start, fragments, delay and alpha. No limit of time: a worker that hangs is a slow one.
    group: default: the default group, or this process alone where there is none.
    seed: of the random numbers in worker blocks.

    A worker costs its rank, beyond the first: parameters, buffers and inner state; with compress 4 bytes per parameter,
    the first worker included, and 4 with quorum. Outer parameters and momentum are 8 bytes per parameter on each rank.
    Buffers are each worker's own, and worker 0's after each synchronous step and, without quorum, after every `every`
    steps.
    Not thread-safe. Collective: the constructor, step() without quorum, load_state_dict(). Errors about arguments are
    raised on all ranks; a RuntimeError in step() leaves a state to be loaded anew.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: Inner,
        *,
        workers: int,
        every: int,
        outer_lr: float = 0.7,
        momentum: float = 0.9,
        nesterov: bool = True,
        start: int = 0,
        fragments: int = 1,
        delay: int = 0,
        alpha: float = 0.0,
        compress: str | None = None,
        quorum: int | None = None,
        grace: float = 0.0,
        rounds: int | None = None,
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        """See the class. TypeError, ValueError or NotImplementedError names what is refused, on all ranks.

        Nothing has changed then, but where it is the inner optimizer: all ranks have rank 0's values.
        """
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError("DiLoCo: this rank is none of group=: only its ranks train")
        self._group = group if group is not None or not dist.is_initialized() else dist.group.WORLD
        options = Options(
            workers, every, outer_lr, momentum, nesterov, start, fragments, delay, alpha, compress, seed,
            quorum, grace, rounds,
        )  # fmt: skip
        model, pieces = self._agreed(
            lambda: self._examined(model, inner, options), lambda _: _lines_of(unwrapped(model), options)
        )
        share(self._group, [parameter.data for parameter in model.parameters()], 0)
        share(self._group, list(model.buffers()), 0)
        self._workers = self._agreed(lambda: self._made(model, inner, options), _lines_of_inner)
        kind = Meetings if quorum is None else Rounds
        self._meetings = kind(self._group, options, self._workers, pieces)
        self._done: list[int] = []  # the workers that have made this step
        self._inside: int | None = None  # a block
        self._failure = ""

    @property
    def _ranks(self) -> int:
        return 1 if self._group is None else self._group.size()

    def _examined(self, model: nn.Module, inner: Inner, options: Options) -> tuple[nn.Module, list[Fragment]]:
        options.check(self._ranks)
        if not callable(inner):
            raise TypeError(f"DiLoCo: inner is a {type(inner).__name__}, must be a function that makes an optimizer")
        found = trained(model, options.start)
        return unwrapped(model), cut(list(found), list(found.values()), options.fragments)

    def _made(self, model: nn.Module, inner: Inner, options: Options) -> Workers:
        rank = 0 if self._group is None else self._group.rank()
        parameters = list(trained(model, options.start).values())
        numbers = Allotment(options.workers, self._ranks).of(rank)
        if dist.is_initialized() and (member := this_member()) is not None and member.is_newcomer:
            numbers = numbers[:1]  # until it joins the others and gets those that it plays
        made = Workers(model, parameters, numbers, inner)
        for worker in made:
            check_inner(made[worker].optimizers, parameters)
        check_apart([made[worker].optimizers for worker in made])
        return made

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Of the ranks that play workers; None: this process alone."""
        return self._group

    @property
    def device(self) -> torch.device:
        """Of the parameters."""
        return self._meetings.device

    @property
    def schedule(self) -> Schedule:
        """Which fragment leaves, and which arrives, after which step. Print it. With quorum: a worker's own steps."""
        return self._meetings.schedule

    @property
    def steps(self) -> int:
        """How many were made; with quorum: outer steps."""
        return self._meetings.steps

    def steps_of(self, worker: int) -> int:
        """How many this rank's worker has made; without quorum the same as all others."""
        self._check_played("steps_of()", worker)
        return self._meetings.steps_of(worker)

    @property
    def finished(self) -> bool:
        """Whether `rounds` outer steps were made; changes in step() only. Always False without quorum."""
        return self._meetings.finished

    @property
    def log(self) -> list[Composition]:
        """With quorum: who was in each outer step so far, as (worker, which of its rounds). The same on all ranks.

        For one_process_local(log=...). Saved in checkpoints.
        """
        return self._meetings.log[: self.steps]

    @property
    def rounds(self) -> int:
        """With quorum: after how many outer steps, in all, workers stop.

        Set it to more, to the same number on all ranks, when `finished`; workers go on in the middle of their rounds.
        """
        return self._with_quorum("rounds").rounds

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        self._with_quorum("rounds").rounds = rounds

    def workers(self) -> list[int]:
        """The numbers of those that this rank plays, and with quorum make a step now."""
        return self._meetings.due()

    def optimizers(self, worker: int | None = None) -> list[Optimizer]:
        """The inner optimizers of a worker of this rank, or of all of them in their order; for rates and schedulers."""
        if worker is not None:
            self._check_played("optimizers()", worker)
        chosen = self._workers if worker is None else [worker]
        return [optimizer for number in chosen for optimizer in self._workers[number].optimizers]

    @contextmanager
    def worker(self, worker: int) -> Iterator[None]:
        """Around the passes of one worker in this step: its parameters are in place, its inner step is at the end.

        Inside, clip gradients if you want to. After an exception inside, the worker has not made the step and may make
        it again. ValueError: this rank does not play it. RuntimeError: it has made this step, or another block is open.
        """
        worker = operator.index(worker)
        self._check_usable("worker()")
        self._check_played("worker()", worker)
        step = self._meetings.steps_of(worker)
        if worker in self._done:
            raise RuntimeError(
                f"DiLoCo: worker {worker} has already made step {step}: each makes it once; accumulate gradients "
                "inside one block"
            )
        self._check_unfinished("worker()")
        if worker not in self.workers():
            raise RuntimeError(f"DiLoCo: worker {worker} {self._meetings.why_not_due}: local.workers() are those due")
        self._meetings.begin_step()
        self._workers.put_in_place(worker)
        if any(parameter.grad is not None for parameter in self._workers.parameters):
            raise RuntimeError(
                f"DiLoCo: worker({worker}) begins, and there are gradients of a pass before: passes belong inside the "
                "blocks, or set them to None"
            )
        self._inside = worker
        buffers = self._workers.buffers_copied()
        try:
            with leaf(step, worker, seed=self._meetings.options.seed):
                yield
        except BaseException:
            self._workers.drop_gradients()
            self._workers.set_buffers(buffers)
            raise
        finally:
            self._inside = None
        self._end(worker)

    def _end(self, worker: int) -> None:
        """The passes of the worker in place are over. A step that fails is torn: all are told when they meet."""
        try:
            if self.schedule.is_synchronous(self.steps + 1):
                self._workers[worker].gradients = self._workers.take_gradients()
            else:
                self._workers.make_step()
        except BaseException as error:
            self._failure = f"the inner step of worker {worker}: {str(error) or type(error).__name__}"
            self._meetings.faults.append(self._failure)
            raise
        self._done.append(worker)

    def step(self) -> None:
        """Ends the step of all workers: those that are due meet. Collective.

        With one worker on this rank, and no block, its inner step comes first. RuntimeError names a worker that has not
        made the step, on its rank at once, and on all ranks when they meet next.
        """
        self._check_usable("step()")
        self._check_unfinished("step()")
        has_gradients = any(parameter.grad is not None for parameter in self._workers.parameters)
        if len(self._workers) == 1 and not self._done and has_gradients:
            self._end(self._workers.in_place)
        left_out = [worker for worker in self._meetings.due() if worker not in self._done]
        if left_out:
            step = self._meetings.steps_of(left_out[0])
            self._meetings.faults.append(
                f"{names(left_out, 'worker')} did not make step {step}: every worker makes every step; one "
                "without samples opens its block and leaves it"
            )
        self._done = []
        try:
            self._meetings.end_step()
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            raise
        if left_out:
            raise RuntimeError(f"DiLoCo: {self._meetings.faults[-1]}")

    @contextmanager
    def outer(self) -> Iterator[nn.Module]:
        """Inside, the model has the outer parameters, to be evaluated or saved: the result of the training so far.

        What has left and not arrived yet is not in them, and what is written to them is dropped, gradients included:
        those of a pass before are there again afterwards. Buffers are those of the worker in place.
        """
        self._check_usable("outer()")
        self._inside = _OUTER
        try:
            with self._workers.replaced(self._meetings.outer_now()):
                yield self._workers.model
        finally:
            self._inside = None

    def describe(self) -> str:
        """The schedule, the fragments, who plays whom, and the bytes that this rank sends every `every` steps."""
        meetings, options = self._meetings, self._meetings.options
        sizes = ", ".join(f"{fragment.elements:,}" for fragment in meetings.fragments)
        return "\n".join(
            [
                f"{counted(options.workers, 'worker')} on {counted(self._ranks, 'rank')}; rank {meetings.rank} plays "
                f"{names(self._workers, 'worker')}",
                f"elements by fragment: {sizes}",
                meetings.plan(),
                f"rank {meetings.rank} sends {byte_size(self.bytes_sent())} "
                + (f"every {counted(options.every, 'step')}" if options.quorum is None else "in an outer step of all"),
            ]
        )

    def bytes_sent(self) -> int:
        """By this rank to others in `every` steps after the synchronous ones, but for buffers.

        With quorum: in an outer step of all workers, but for notes of 16 (W + 1) bytes, 10 in a second in long rounds.
        """
        return self._meetings.bytes_sent()

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state: what all have, its workers by number, its part of what is on the way.

        At any step, also with fragments on their way, but not between the blocks of a step. Tensors are the running
        ones, not copies. Waits for what is on its way, and is not collective. Frozen parameters are not in it. With
        quorum: before the first step, and when `finished`.
        """
        self._check_between_steps("state_dict()")
        return state.of_rank(self._meetings)

    def load_state_dict(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Takes the state dicts of all ranks that have saved, whatever the number of ranks is now. Collective.

        What does not fit is an error on all ranks, before anything has changed.
        """
        self._check_outside("load_state_dict()")
        listed = [states] if isinstance(states, Mapping) else list(states)
        whole = self._agreed(lambda: self._checked_state(listed), lambda it: [f"steps={it['steps']}"])
        self._failure = "load_state_dict(), halfway"
        state.adopt(self._meetings, whole)
        for worker in self._workers:
            state.adopt_inner(self._meetings, worker, whole["workers"][worker])
        self._loaded()

    def holder(self, names: Mapping[Tensor, str]) -> Holder:
        """For ringdp.checkpoint: `save(folder, model, local)` and `load(folder, model, local)`, at any number of ranks.

        A model by itself loads the outer parameters, and worker 0's buffers.
        """
        self._check_outside("a checkpoint")
        if any(parameter not in names for parameter in self._workers.parameters):
            raise CheckpointError("the model is not the one that this DiLoCo trains")
        for worker in [*self._workers][:1]:
            self._workers.put_in_place(worker)  # the model's buffers are saved: worker 0's on rank 0
        return LocalHolder(self._meetings, lambda: self._check_between_steps("a checkpoint"), self._loaded)

    def check_survives(self) -> None:
        """For ringdp.elastic.survive_local. NotImplementedError or ValueError names what does not survive."""
        options = self._meetings.options
        for name, value, unset, why in (
            ("quorum", options.quorum, None, "a contribution that an outer step has taken is gone with its rank"),
            ("start", options.start, 0, "all workers would have to be kept after each synchronous step"),
            ("delay", options.delay, 0, "what is on its way is gone with a rank"),
        ):
            if value != unset:
                raise NotImplementedError(f"survive_local: {name}={value!r} of the DiLoCo: {why}; leave {name}= out")
        own = [self._workers[worker].optimizers for worker in self._workers]
        check_apart([*own, self._workers.new_optimizers()])  # as one gets that comes here

    def lines(self) -> list[str]:
        """For ringdp.elastic.survive_local: what must be equal on all ranks for the same bits, one thing each."""
        model, optimizers = self._workers.model, self._workers[next(iter(self._workers))].optimizers
        frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
        inner = [f"inner {type(o).__name__} of {[len(g['params']) for g in o.param_groups]}" for o in optimizers]
        return [*_lines_of(model, self._meetings.options), f"frozen parameters: {frozen}", *inner]

    @contextmanager
    def kept_meetings(self) -> Iterator[KeptMeetings]:
        """For ringdp.elastic.survive_local: inside, the caller makes the meetings and says who plays whom.

        After an exception inside, a state is to be loaded anew. RuntimeError in the middle of a step.
        """
        self._check_between_steps("survive_local's train()")
        plain = self._meetings
        self._meetings = kept = KeptMeetings(plain)
        try:
            yield kept
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            raise
        finally:
            kept.give_back(plain)
            self._meetings = plain

    def regroup(self, group: dist.ProcessGroup) -> None:
        """For ringdp.elastic.survive_local, inside kept_meetings(): another group in the place of the default one."""
        self._group = group
        if isinstance(self._meetings, KeptMeetings):
            self._meetings.regroup(group)
        self._workers.drop_gradients()

    def _checked_state(self, states: Sequence[Mapping[str, Any]]) -> state.State:
        if not self._failure:
            self._meetings.check_still("load_state_dict()")
        return state.checked(self._meetings, state.merged(states))

    def _loaded(self) -> None:
        self._done, self._failure = [], ""

    def _agreed(self, action: Callable[[], Result], lines_of: Callable[[Result], list[str]]) -> Result:
        """Collective: the result of an action that must have the same lines, or the same error, on all ranks."""
        result, error = None, None
        try:
            result = action()
            lines = ["accepted", *lines_of(result)]
        except Exception as raised:
            error, lines = raised, [f"{type(raised).__name__}: {raised}"]
        if self._group is not None and (difference := Comparison(self._group, lines).difference()):
            raise RuntimeError(
                f"DiLoCo: the ranks were not given the same. {difference}. Give all ranks the same model and arguments"
            ) from error
        if error is not None:
            raise error
        return result

    def _check_outside(self, what: str) -> None:
        if self._inside is not None:
            where = "outer()" if self._inside == _OUTER else f"worker({self._inside})"
            raise RuntimeError(f"DiLoCo: {what} inside the block of {where}: end that first")

    def _check_played(self, what: str, worker: int) -> None:
        if worker not in self._workers:
            raise ValueError(
                f"DiLoCo: {what[:-1]}{worker}) on rank {self._meetings.rank}, which plays "
                f"{names(self._workers, 'worker')}"
            )

    def _check_unfinished(self, what: str) -> None:
        if self.finished:
            raise RuntimeError(
                f"DiLoCo: {what} after all of rounds={self.rounds} outer steps: loop while not local.finished, or set "
                "local.rounds"
            )

    def _with_quorum(self, what: str) -> Rounds:
        if not isinstance(self._meetings, Rounds):
            raise ValueError(f"DiLoCo: {what} without quorum=: all workers wait for all, as long as step() is called")
        return self._meetings

    def _check_usable(self, what: str) -> None:
        self._check_outside(what)
        if self._failure:
            raise RuntimeError(
                f"DiLoCo: {what} after a step that has failed: load a checkpoint. It was: {self._failure}"
            )

    def _check_between_steps(self, what: str) -> None:
        """RuntimeError where the state is not that of a step."""
        self._check_usable(what)
        self._meetings.check_still(what)
        if self._meetings.faults:
            raise RuntimeError(f"DiLoCo: {what} of a wrong state: {self._meetings.faults[0]}")
        if self._done:
            raise RuntimeError(
                f"DiLoCo: {what} in the middle of step {self.steps}, which {names(self._done, 'worker')} made: call "
                "step() first"
            )


def _lines_of(model: nn.Module, options: Options) -> list[str]:
    """What must be equal on all ranks."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [*options.lines(), *(line_of(number, *tensor) for number, tensor in enumerate(tensors))]


def _lines_of_inner(workers: Workers) -> list[str]:
    """The settings that torch's classes know, of a rank's first worker; all workers begin with the same."""
    return [
        f"inner optimizer {number}, {type(optimizer).__name__}, group {place}: {name}={group.get(name)!r}"
        for number, optimizer in enumerate(workers[workers.in_place].optimizers)
        for place, group in enumerate(optimizer.param_groups)
        for name in optimizer.defaults
    ]
