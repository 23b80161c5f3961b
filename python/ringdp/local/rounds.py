"""Outer steps that wait for a quorum of workers and a grace time, and not for the slowest worker. Of one rank.

A worker that has made its H steps contributes what it has walked, waits for the outer step that takes it, and goes on
from there. An outer step takes what has arrived; what arrives later is taken by the next one as it is, measured from
the older outer parameters with which its worker has begun (buffered asynchronous aggregation, arXiv 2106.06639).

A thread on each rank exchanges notes with the others, in a process group of its own, whatever the workers do: what has
arrived, and what rank 0 has decided, which is who is in the next outer step. All ranks then sum these contributions, in
that thread. As it never waits for a worker, a note that does not come is a rank that has died. These decisions are the
log, and the only thing that depends on time: `ringdp.testing.one_process_local(log=...)` replays it to the bit.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.compress.exchange import Allotment, Exchange
from ringdp.gather_objects import device_of, gather_objects
from ringdp.local.fragments import Fragment
from ringdp.local.meetings import Meetings
from ringdp.local.options import Options, check_rounds
from ringdp.local.workers import Workers
from ringdp.same_ranks import another_group
from ringdp.text.units import counted

_SHARE, _LEAST_S, _MOST_S = 0.02, 0.005, 0.1  # between notes: of the time since the latest outer step
Composition = tuple[tuple[int, int], ...]  # of an outer step: (worker, which of its rounds), by worker


@dataclass(frozen=True)
class Contributors(Allotment):
    """The workers that are in one outer step: their places among `numbers`, each on the rank that plays it."""

    numbers: tuple[int, ...] = field(kw_only=True)
    players: Allotment = field(kw_only=True)

    def of(self, rank: int) -> range:
        """The places of a rank's workers; there may be none."""
        first, last = self.players.of(rank)[0], self.players.of(rank)[-1]
        return range(bisect_left(self.numbers, first), bisect_left(self.numbers, last + 1))


class Quorum:
    """When what has arrived becomes an outer step: all are there, or `grace` seconds have passed since `quorum` are."""

    def __init__(self, quorum: int, grace: float, workers: int) -> None:
        self._quorum, self._grace, self._workers = quorum, grace, workers
        self._since: float | None = None

    def is_met(self, waiting: int, now: float) -> bool:
        """waiting: contributions that are there. True begins anew."""
        if waiting < self._quorum:
            return False
        if self._since is None:
            self._since = now
        if waiting < self._workers and now - self._since < self._grace:
            return False
        self._since = None
        return True

    def is_certain(self, waiting: int) -> bool:
        """Whether it is met at any time."""
        return waiting == self._workers or (waiting >= self._quorum and self._grace == 0)


class Rounds(Meetings):
    """Meetings of a quorum. The program's thread calls what is public; collective only: the constructor.

    log: the outer steps so far. finished: as many as `rounds` were made, as of the latest end_step().
    """

    why_not_due = "has contributed and waits for an outer step"

    def __init__(
        self, group: dist.ProcessGroup | None, options: Options, workers: Workers, fragments: Sequence[Fragment]
    ) -> None:
        """See Meetings; one fragment."""
        super().__init__(group, options, workers, fragments)
        self._notes = another_group(group) if group is not None else None
        self._rounds = options.rounds or 0
        self.log: list[Composition] = []
        self._waiting: set[int] = set()  # workers that have contributed, and not begun again
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards what both threads use: the outer parameters, and from here on
        self._walked: dict[int, Tensor] = {}  # contributions that no outer step has taken
        self._begins: dict[int, Tensor] = {}  # where workers go on from
        self._error: BaseException | None = None
        for worker in workers:
            workers[worker].begun = [self.outer.as_begun(0).clone()]
            workers[worker].made = torch.zeros((), dtype=torch.int64)
        # Of the thread; _stepped: when the latest outer step was made.
        self._stepped = 0.0
        self._quorum = Quorum(options.quorum or 0, options.grace, options.workers)
        self._taken = self._decided = torch.zeros(options.workers, dtype=torch.int64)  # rounds, by worker

    @property
    def rounds(self) -> int:
        """After so many outer steps, in all, workers stop."""
        return self._rounds

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        self.check_still("rounds=")
        check_rounds(rounds, len(self.log))
        self._rounds = rounds
        self.finished = len(self.log) >= rounds

    def due(self) -> list[int]:
        """The workers of this rank that make a step now."""
        return [] if self.finished else [worker for worker in self.workers if worker not in self._waiting]

    def steps_of(self, worker: int) -> int:
        """Its own."""
        return int(self.workers[worker].made)

    def outer_now(self) -> list[Tensor]:
        """Copies, in the types of the model."""
        with self._changed:
            return self.outer.rounded()

    def check_still(self, what: str) -> None:
        """RuntimeError while outer steps are on their way."""
        if self._thread is not None and self._error is None:
            raise RuntimeError(
                f"DiLoCo: {what} while outer steps are on their way, after {len(self.log)} of rounds={self._rounds}: "
                "do that when local.finished, and set local.rounds to go on"
            )

    def plan(self) -> str:
        """What is decided when."""
        options = self.options
        return (
            f"outer step: once {options.quorum} of {counted(options.workers, 'worker')} have contributed and "
            f"{options.grace} s have passed, or all have; {self._rounds} in all"
        )

    def bytes_sent(self) -> int:
        """By this rank for an outer step that takes all workers, without notes."""
        return self.allotment.bytes_sent(self.rank, self.fragments[0].elements, self._codecs)

    def begin_step(self) -> None:
        """From now on notes are exchanged, until it is finished."""
        if self._thread is None:
            self._taken = self._decided = self._taken_so_far()
            arguments = (torch.get_num_threads(),)
            self._thread = threading.Thread(target=self._exchange_notes, args=arguments, name="ringdp-rounds")
            self._thread.start()

    @torch.no_grad()
    def end_step(self) -> None:
        """All workers that were due have made a step. Waits while all of this rank wait for an outer step."""
        self.begin_step()
        for worker in self.due() if not self.faults else ():
            self._count(worker)
        with self._changed:
            self._changed.wait_for(lambda: self._begins or self._is_over() or (self.due() and not self.faults))
            if self._error is not None:
                raise self._error
            begins, self._begins = self._begins, {}
            self.steps = len(self.log)
            self.finished = self.steps >= self._rounds
        for worker, begun in begins.items():
            self.workers[worker].begun[0].copy_(begun)
            for number, _, view in self.fragments[0].views(begun):
                self.workers.values(worker)[number].copy_(view)
            self._waiting.remove(worker)
        if self.finished:
            self._thread.join()
            self._thread = None

    def adopted(self, state: Mapping[str, Any]) -> None:
        """A state's parameters were taken."""
        self.log = [tuple((worker, number) for worker, number in taken) for taken in state["log"]]
        self.finished = len(self.log) >= self._rounds
        self._thread = self._error = None
        self._walked, self._begins, self._waiting = {}, {}, set()
        taken = self._taken_so_far()
        for worker in self.workers:
            if self.steps_of(worker) // self.options.every > taken[worker]:
                self._contribute(worker)

    def _count(self, worker: int) -> None:
        """A worker has made a step."""
        with self._changed:
            self.workers[worker].made += 1
            if self.steps_of(worker) % self.options.every == 0:
                self._contribute(worker)

    def _contribute(self, worker: int) -> None:
        own = self.workers[worker]
        self._walked[worker] = own.begun[0] - self.fragments[0].flat(self.workers.values(worker))
        self._waiting.add(worker)
        self._settle()

    def _settle(self) -> None:
        """Threads may have different streams."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def _is_over(self) -> bool:
        return self._error is not None or len(self.log) >= self._rounds

    def _taken_so_far(self) -> Tensor:
        """How many rounds of each worker are in the log."""
        taken = Counter(worker for composition in self.log for worker, _ in composition)
        return torch.tensor([taken[worker] for worker in range(self.options.workers)])

    # What follows runs in the thread.

    @torch.no_grad()
    def _exchange_notes(self, threads: int) -> None:
        """threads: for sums; a new thread would begin with another number."""
        torch.set_num_threads(threads)
        self._stepped = time.monotonic()
        try:
            while not self._is_over() and threading.main_thread().is_alive():
                if composition := self._note():
                    self._step_outside(composition)
        except BaseException as error:
            self._error = error
        with self._changed:
            self._changed.notify_all()

    def _note(self) -> Composition:
        """One exchange: who is in the next outer step, where that was decided before."""
        workers, every = self.options.workers, self.options.every
        note = torch.zeros(2 + 2 * workers, dtype=torch.int64)
        note[0], note[1] = bool(self.faults), self._rounds
        with self._changed:
            for worker in self.workers:
                note[2 + worker] = self.workers[worker].made // every
        note[2 + workers :] = self._decided
        by_rank = self._of_all_ranks(note)
        self._check(by_rank)
        arrived, decided = by_rank[:, 2 : 2 + workers].sum(0), by_rank[0, 2 + workers :]
        chosen = (decided > self._taken).nonzero().flatten().tolist()
        composition = tuple((worker, int(self._taken[worker])) for worker in chosen)
        self._taken = self._decided = decided
        if composition:
            return composition
        waiting = int((arrived > decided).sum())
        if self.rank == 0 and self._quorum.is_met(waiting, time.monotonic()):
            self._decided = arrived
        if not self._quorum.is_certain(waiting):  # the next note decides then
            time.sleep(min(max(_LEAST_S, _SHARE * (time.monotonic() - self._stepped)), _MOST_S))
        return ()

    def _of_all_ranks(self, note: Tensor) -> Tensor:
        """[rank, ...]. Collective."""
        if self._notes is None:
            return note[None]
        own = note.to(device_of(self._notes))
        by_rank = [torch.empty_like(own) for _ in range(self._notes.size())]
        dist.all_gather(by_rank, own, group=self._notes)
        return torch.stack(by_rank).cpu()

    def _check(self, by_rank: Tensor) -> None:
        """RuntimeError on all ranks: one of them has done something wrong. Collective where one has."""
        if by_rank[:, 0].any():
            own = self.faults[:1]
            faults = gather_objects(own, self._notes) if self._notes is not None else [own]
            said = "; ".join(f"rank {rank}: {fault}" for rank, its in enumerate(faults) for fault in its)
            raise RuntimeError(f"DiLoCo: {said}; load the latest checkpoint")
        rounds = by_rank[:, 1].tolist()
        if len({*rounds}) > 1:
            said = "; ".join(f"rank {rank}: {its}" for rank, its in enumerate(rounds))
            raise RuntimeError(f"DiLoCo: rounds= differs between ranks: {said}. Set it to the same number on all ranks")

    def _step_outside(self, composition: Composition) -> None:
        """The outer step of the mean of these contributions. Collective."""
        options, workers = self.options, self.workers
        numbers = tuple(worker for worker, _ in composition)
        ranks, block = self.allotment.ranks, self.allotment.block
        present = Contributors(len(numbers), ranks, block, numbers=numbers, players=self.allotment)
        own = {place: numbers[place] for place in present.of(self.rank)}
        with self._changed:
            walked = {place: self._walked.pop(worker) for place, worker in own.items()}
        mean = Exchange(
            self._notes,
            present,
            self._codecs,
            self.fragments[0].elements,
            walked.__getitem__,
            residuals={place: workers[worker].residuals[0] for place, worker in own.items() if self.mean_residuals},
            mean_residuals=self.mean_residuals[0] if self.mean_residuals else None,
            device=self.device,
        ).mean()
        self._stepped = time.monotonic()
        with self._changed:
            self.outer.step(0, mean, options.outer_lr, options.momentum, options.nesterov)
            begun = self.outer.as_begun(0).clone() if own else mean
            self._settle()
            self._begins.update({worker: begun for worker in own.values()})
            self.log.append(composition)
            self._changed.notify_all()
