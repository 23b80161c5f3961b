"""From one world to the next: what every training that survives deaths does, whatever its steps are.

After a fault the members that live meet in the next world, take up what they have (the subclass says how), and go on.
"""

from __future__ import annotations

import functools
import hashlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ringdp import _native
from ringdp.ddp.agreement import Comparison, first_difference
from ringdp.elastic.member import Closed, Member, this_member
from ringdp.elastic.recovery import OF_THIS_PROCESS, Recovery
from ringdp.elastic.worlds import WorldIsOver
from ringdp.text.arguments import check_function, check_number, check_whole_number
from ringdp.text.units import counted, names
from ringdp.zero.regroup import gathered

_C = _native.load()
Body = Callable[[int, Sequence[int]], object]

_DIGEST_BYTES = 16
_MOST_IN_VAIN = 5  # failed attempts in a row, with the same members and no step between, before they are blamed
_LOOK_S = 0.2  # between two looks of rank 0 for a world that somebody waits to join


class WorldLoop:
    """A training in worlds. recoveries: the worlds of this process, but for the first of the job. name: for messages.

    A subclass counts in _applied the steps that this rank has applied, up to _steps; beside that, _ended and _saved are
    those for which `after` was called, and for which `save` was called if it had to be.
    """

    name = "survive"
    min_ranks: int | None = None
    patience = 30.0
    after: Callable[[int], object] | None = None
    save: Callable[[int], object] | None = None
    save_every = 1

    def __init__(self, body: Body) -> None:
        functools.update_wrapper(self, body)
        self.recoveries: list[Recovery] = []
        self._body = body
        self._member: Member | None = None
        self._lines: list[str] = []  # see _all_lines()
        self._steps = self._applied = self._ended = self._saved = 0
        self._has_state = True
        self._known: set[int] = set()  # members with which this rank has trained
        self._looked = 0.0
        self._since = 0.0  # of the first fault since the latest world
        self._is_inside = False  # of a world, or of one that it could not enter

    # What a subclass does.

    def _run(self) -> bool:
        """Steps until all are applied (True), or until another world waits to begin. Collective."""
        raise NotImplementedError

    def _take_up(self, cause: str) -> Recovery:
        """A world has begun: what each rank has, and gets. Collective; its times are noted by the caller."""
        raise NotImplementedError

    def _all_lines(self) -> list[str]:
        """What must be equal on all ranks, one thing in each line."""
        raise NotImplementedError

    def _join_job(self) -> None:
        """This process is a member, and has not entered a world."""

    def _start_alone(self) -> None:
        """No supervisor has started this process."""

    def _entered(self) -> None:
        """A world has been taken up."""

    def _give_up(self) -> None:
        """The training has failed here."""

    def _begin(self, steps: int, made: int) -> None:
        """From so many steps that were made. RuntimeError or ValueError, before anything has changed."""
        member = this_member()
        if member is not None and member.trains:
            raise RuntimeError(
                f"{self.name}: a second training in one process. A rank that joins would begin with the first one, "
                "which is over: give all steps to one call"
            )
        if member is not None and self.min_ranks is not None and self.min_ranks > member.terms["ranks"]:
            raise ValueError(
                f"{self.name}: min_ranks={self.min_ranks} of a job that has {member.terms['ranks']} at most"
            )
        self._member = member
        self._steps, self._applied, self._ended, self._saved = steps, made, made, made
        given = ("min_ranks", "patience", "save_every")
        self._lines = [f"steps={steps}", *(f"{name}={getattr(self, name)!r}" for name in given)]
        self._lines += [f"save= is {'not ' * (self.save is None)}given", *self._all_lines()]
        if member is None and dist.is_initialized():
            lines = [*self._lines, f"{counted(made, 'step')} made"]
            if difference := Comparison(dist.group.WORLD, lines).difference():
                raise RuntimeError(
                    f"{self.name}: the ranks were not given the same. {difference}. Give all ranks the same arguments "
                    "and model"
                )

    def _train(self) -> None:
        """Up to _steps. RuntimeError where the job cannot go on."""
        if self._member is None:
            warn_once(self.name)
            self._start_alone()
            self._run()
            return
        self._member.trains = True
        self._has_state = not self._member.is_newcomer
        self._join_job()
        try:
            self._run_in_worlds()
        except BaseException as error:
            self._give_up()
            if isinstance(error, Exception):
                self._member.give_up()
            raise

    def _run_in_worlds(self) -> None:
        cause, vain = "", 0
        while True:
            before = (self._applied, self._member.members())
            try:
                self._enter(cause)
                self._entered()
                if self._run() and self._member.close():
                    return
                cause = ""
            except Closed:
                self._check_is_done()
                return
            except (WorldIsOver, dist.DistError) as error:
                cause = _first_sentence(error)
                self._since = self._since or time.monotonic()
                vain = vain + 1 if (self._applied, self._member.members()) == before else 0
                if vain >= _MOST_IN_VAIN:
                    self._blame_newcomers(cause, error)
                    vain = 0

    def _enter(self, cause: str) -> None:
        """The newest world: its group, and the state of this rank."""
        member, begin = self._member, time.monotonic()
        if self._is_inside:
            member.leave(is_fault=bool(cause))
        self._is_inside = True
        left = time.monotonic()
        # Ranks that have applied all steps leave, and those that were disturbed on the way out need no others.
        enough = 1 if self._applied >= self._steps else self.min_ranks or member.terms["min_ranks"]
        gathering_s, joining_s = member.enter(enough)
        joined = time.monotonic()
        self._check_settings()
        recovery = self._take_up(cause)
        self._known.update(member.members())
        if member.world.epoch > 0:
            recovery.leaving_s, recovery.gathering_s = left - (self._since or begin), gathering_s
            recovery.joining_s, recovery.state_s = joining_s, time.monotonic() - joined
            self._note(recovery)

    def _note(self, recovery: Recovery) -> None:
        self._since = 0.0
        self.recoveries.append(recovery)
        OF_THIS_PROCESS.append(recovery)
        _C.note_world(recovery.epoch, len(recovery.members), recovery.step, int(1e9 * recovery.seconds()))
        if dist.get_rank() == 0:
            print(recovery.line(), file=sys.stderr, flush=True)

    def _check_settings(self) -> None:
        """A newcomer that differs raises RuntimeError; the others wait for a world without it."""
        lines = [*_platform_lines(), *self._lines]
        digest = hashlib.sha256("\n".join(lines).encode()).digest()[:_DIGEST_BYTES]
        digests = gathered([*digest, int(self._has_state)], dist.group.WORLD)
        sample = next((of_rank for of_rank in digests if of_rank[-1]), digests[0])
        others = [rank for rank, of_rank in enumerate(digests) if of_rank[:-1] != sample[:-1]]
        if not others:
            return
        difference = first_difference(dist.group.WORLD, lines)
        if dist.get_rank() in others:
            raise RuntimeError(f"{self.name}: this rank cannot join, as it differs from those that train. {difference}")
        raise WorldIsOver(f"{names(others)} would compute other bits, and must leave")

    def _call_after(self, number: int) -> None:
        """Calls `after`, once per step that this rank has applied."""
        begins, self._ended = self._ended < self._applied, self._applied
        if self.after is None or not begins:
            return
        try:
            self.after(number)
        except dist.DistError as error:
            raise RuntimeError(f"{self.name}: after() must not communicate: not all ranks may call it") from error

    def _call_save(self, number: int, *, is_time: bool) -> None:
        """All ranks have applied as many steps here, and call `save` if it is time."""
        if self.save is not None and is_time and self._saved != self._applied:
            self.save(number)
            if self._member is not None:
                dist.barrier()  # whoever passes knows that all have saved
        self._saved = self._applied

    def _sees_newer_world(self) -> bool:
        """Of rank 0, which tells the others."""
        now = time.monotonic()
        if self._member is None or dist.get_rank() != 0 or now < self._looked + _LOOK_S:
            return False
        self._looked = now
        return self._member.is_over()

    def _blame_newcomers(self, cause: str, error: BaseException) -> None:
        """Attempts are in vain with these members. RuntimeError unless some of them have never trained here."""
        newcomers = [member for member in self._member.members() if member not in self._known]
        if not newcomers or not self._known:
            raise RuntimeError(
                f"{self.name}: step {self._applied} has failed {_MOST_IN_VAIN} times though no rank has died: {cause}"
            ) from error
        self._member.replace(newcomers, f"cannot join: {cause}")

    def _check_is_done(self) -> None:
        """The others have trained to the end, and so has this rank unless it is a newcomer, which is not needed."""
        if not self._has_state:
            raise SystemExit(0)
        if self._applied < self._steps:
            raise RuntimeError(f"{self.name}: the others have applied steps that this rank has not: a defect of ringdp")


def _platform_lines() -> list[str]:
    """What computes."""
    instructions = f"instruction set {torch.backends.cpu.get_cpu_capability()}"
    return [f"torch {torch.__version__}", instructions, counted(torch.get_num_threads(), "thread")]


def check_arguments(
    name: str,
    *,
    min_ranks: int | None,
    patience: float,
    after: object,
    save: object,
    save_every: int,
    state: Sequence[Any],
) -> None:
    """ValueError names the first one that no training has."""
    if min_ranks is not None:
        check_whole_number(f"{name}: min_ranks", min_ranks, 1)
    check_number(f"{name}: patience", patience, lambda it: 0 < it < math.inf, "a number of seconds above 0")
    check_whole_number(f"{name}: save_every", save_every, 1)
    check_function(f"{name}: after", after)
    check_function(f"{name}: save", save)
    if not isinstance(state, (list, tuple)):
        raise ValueError(f"{name}: state is a {type(state).__name__}, must be a list of objects with state_dict()")
    for number, part in enumerate(state):
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise ValueError(f"{name}: state[{number}] is a {type(part).__name__}, which has no state_dict()")


def _first_sentence(error: BaseException) -> str:
    """What has happened; the rest of an error says what to do without survive."""
    line = str(error).partition("\n")[0].partition(". ")[0]
    return line or type(error).__name__


@functools.cache
def warn_once(name: str) -> None:
    """In _train(), which the program's call has called."""
    warnings.warn(
        f"{name}: this process was not started by `ringdp run --min-ranks`, so a rank that dies ends the job",
        stacklevel=4,
    )
