"""`ringdp.elastic.survive_local`: workers that step alone, and go on when ranks die, with the bits of one process.

Between two meetings workers need nobody, so nothing is lost with a rank but the steps of its workers since the latest
meeting. A meeting is made by all ranks or by none:

    come       whoever is there waits, without a limit of time, as long as the others make steps
    prepare    on copies: the mean, the outer step, and the state in which each worker begins its next round
    keep       that state, in memory that outlives the ranks of the host, and with copies=True on another host, too
    vote       whoever passes knows that all ranks have kept it
    make       nothing can fail any more

After a fault the ranks that live meet in the next world. If a vote has passed for any, whoever has not made that
meeting makes it now; if none has, it is prepared again. Workers that live stay where they are, at their steps. Lost
ones are dealt out, begin as they were kept at the latest meeting, and make their steps since then again. What is kept
is the same wherever it lies, as it has the bits of one process: any copy of the right meeting is right.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.ddp.modes import ring_options
from ringdp.elastic.arrivals import Arrivals
from ringdp.elastic.host_memory import NOT_HERE, HostMemory
from ringdp.elastic.recovery import OUTER, LocalRecovery, Recovery
from ringdp.elastic.state import hand_on, messages, received
from ringdp.elastic.world_loop import Body, WorldLoop, check_arguments
from ringdp.elastic.worlds import WorldIsOver
from ringdp.local.diloco import DiLoCo
from ringdp.local.kept_meetings import KeptMeetings, Prepared, dealt
from ringdp.text.arguments import check_flag, check_whole_number
from ringdp.text.units import counted, names
from ringdp.zero.regroup import gathered

_LOOK_S, _SHARE = 0.05, 0.02  # between two looks of a rank that steps: at least, and so that they take so much of it
_LOOKS = 10  # but so many in the timeout of process groups
_PAUSE_S = 0.02


def survive_local(
    local: DiLoCo,
    *,
    min_ranks: int | None = None,
    after: Callable[[int], object] | None = None,
    save: Callable[[int], object] | None = None,
    save_every: int = 1,
    state: Sequence[Any] = (),
    patience: float = 30.0,
    copies: bool = False,
) -> Callable[[Body], LocalTraining]:
    """Makes `train(step, workers)` a training that survives the death of ranks, under `ringdp run --min-ranks`.

        local = ringdp.DiLoCo(model, inner, workers=8, every=20)

        @ringdp.elastic.survive_local(local)
        def train(step, workers):
            for worker in workers:
                with local.worker(worker):
                    loss_of(model, step, worker).backward()

        train(300)

    The function runs the step of the workers that it is given, and nothing else: `workers` are those of this rank that
    make step `step` now. Ranks are at different steps between two meetings, and where a rank has died, so are the
    workers of one rank: it is called for those that are behind. It must not communicate. `train(steps)` goes on from
    where `local` is, and returns on all ranks when all workers have made so many steps in all.

    local: with any options but quorum, start and delay, on CPUs, over the default process group of backend ringdp.
    after: called after each meeting with the number of steps so far, the model having the parameters of a worker: with
        local.outer() evaluate there. A rank that dies may not have come to it. It must not communicate.
    save: called on all ranks after the meeting that ends each `save_every`-th round of the DiLoCo's `every` steps; it
        may communicate, as ringdp.checkpoint.save does, but not change the state. Where a rank dies before all have
        returned from it the next world calls it again, on all ranks.
    state: further objects with state_dict() and load_state_dict() that change in `after` only, such as averages of
        outer parameters; ranks that join get it. Rates of inner optimizers are no state: set them in the block, from
        `step`, by local.optimizers(worker).
    min_ranks, patience: see survive().
    copies: each rank sends what it keeps to a rank on another host as well, before every meeting: parameters, inner
        state and residuals of its workers. So a host may die, too. With one host there is nothing to send.

    Where a worker comes from whose rank has died is said by a line of rank 0, and by train.recoveries: the memory of
    its host; a copy on another one; or, where neither is there, the outer parameters, with new inner optimizers and no
    residuals. Then the job goes on, with other bits than one process has. Also all ranks may die at once, if `state` is
    empty and processes that replace them find all that was kept.

    Kept are two states of each worker beside the one that runs, in memory of the host.
    The default process group is replaced, so that rank and world size change; groups of the program's own end with it.
    A rank that joins runs the program's beginning in a world of one rank. Under another launcher, and in one process,
    the same program trains, and a fault ends it. ValueError and NotImplementedError name what is refused.
    """
    if not isinstance(local, DiLoCo):
        raise ValueError(f"survive_local: local is a {type(local).__name__}, must be a ringdp.DiLoCo")
    local.check_survives()
    if local.device.type != "cpu":
        raise NotImplementedError(f"survive_local: the model is on {local.device}, and only models on the CPU survive")
    is_default = local.group is dist.group.WORLD
    if dist.is_initialized() and not (is_default and ring_options(local.group, local.device) is not None):
        raise ValueError(
            "survive_local: the process group must be the default one, of backend ringdp: it is made anew after a fault"
        )
    given = {"min_ranks": min_ranks, "patience": patience, "after": after, "save": save, "save_every": save_every}
    check_arguments("survive_local", **given, state=state)
    check_flag("survive_local: copies", copies)

    def decorate(body: Body) -> LocalTraining:
        training = LocalTraining(body, local, tuple(state), copies=copies)
        training.min_ranks, training.patience = min_ranks, float(patience)
        training.after, training.save, training.save_every = after, save, save_every
        return training

    return decorate


class LocalTraining(WorldLoop):
    """What survive_local() makes of a function."""

    name = "survive_local"
    _meetings: KeptMeetings

    def __init__(self, body: Body, local: DiLoCo, state: tuple[Any, ...], *, copies: bool) -> None:
        super().__init__(body)
        self._local, self._state, self._copies = local, state, copies
        self._memory: HostMemory | None = None
        self._arrivals: Arrivals | None = None  # in this world, where a supervisor has started this process
        self._look_at = 0.0

    def __call__(self, steps: int) -> None:
        """Until all workers have made so many steps. Collective. RuntimeError where the job cannot go on."""
        made = self._local.steps
        check_whole_number("train: steps", steps, made)
        self._begin(steps, made)
        with self._local.kept_meetings() as self._meetings:
            try:
                self._train()
            finally:
                if self._memory is not None:
                    self._memory.close()
                    self._memory = None

    def _join_job(self) -> None:
        try:
            self._memory = HostMemory(self._member.memory())
        except (OSError, dist.DistError) as error:
            raise RuntimeError(
                "survive_local: the memory that the supervisor of this host lends to its ranks is not to be opened: "
                f"{error}"
            ) from error

    def _entered(self) -> None:
        self._member.begin_training(self.patience)

    def _run(self) -> bool:
        self._save()  # if that had to wait for this world
        while self._applied < self._steps:
            until = self._meetings.next(self._steps)
            self._step_alone(until)
            self._wait_for_all()
            self._keep(self._meetings.prepare(until))
            changes = self._vote()
            self._make()
            self._end_meeting()
            self._save()
            if changes:
                return False
        if self._member is not None:
            dist.barrier()  # whoever passes knows that all ranks have made the last meeting
        return True

    def _step_alone(self, until: int) -> None:
        """The workers of this rank, the ones that are behind first."""
        meetings = self._meetings
        while meetings.made and (step := min(meetings.made.values())) < until:
            self._look()
            due = meetings.due()
            try:
                self._body(step, tuple(due))
            except dist.DistError as error:
                raise RuntimeError(
                    f"survive_local: {self.__name__}() must not communicate: ranks are at different steps there"
                ) from error
            if any(meetings.made[worker] != step for worker in due):
                raise RuntimeError(
                    f"survive_local: {self.__name__}() has called local.step(), which survive_local does after it"
                )
            self._local.step()

    def _wait_for_all(self) -> None:
        """Until all are at the meeting: the timeout of its collectives would end while one makes up for lost steps."""
        if self._arrivals is not None:
            limit_s = self._member.timeout_s
            blame = functools.partial(self._member.replace, why=f"has not made a step for {limit_s:g} s")
            self._arrivals.come(self._look, limit_s, blame)

    def _look(self) -> None:
        """WorldIsOver where members have left this world: the workers of those that are gone are dealt out at once."""
        now = time.monotonic()
        if self._arrivals is None or now < self._look_at:
            return
        self._arrivals.tell_step()
        left = self._member.left()
        then = time.monotonic()
        pause_s = max(_LOOK_S, (then - now) / _SHARE)
        self._look_at = then + min(pause_s, self._member.timeout_s / _LOOKS)  # others wait for a sign of life
        if left:
            raise WorldIsOver(f"{names(left, 'member')} left world {self._member.world.epoch}")

    def _vote(self) -> bool:
        """Nobody passes before all ranks have kept what they prepared. Whether a newer world is there; on all alike."""
        if self._member is None:
            return False
        told = torch.tensor([int(self._sees_newer_world())])
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return bool(told)

    def _make(self) -> None:
        self._meetings.make()
        self._applied = self._meetings.steps

    def _end_meeting(self) -> None:
        self._call_after(self._applied)

    def _save(self) -> None:
        rounds, rest = divmod(self._applied, self._meetings.options.every)
        self._call_save(self._applied, is_time=rest == 0 and rounds % self.save_every == 0)

    # What is kept: a record of each worker, one of what all ranks have, and blocks of means' residuals by fragment.

    def _keep(self, made: Prepared | None) -> None:
        """What this rank has after a meeting, as prepared; with copies, on another host as well. Collective with those.

        None: after the latest one, which is only kept where it is not there.
        """
        if self._memory is None:
            return
        meetings, host = self._meetings, self._member.host
        moment = meetings.number if made is None else made.number
        for worker in meetings.workers:
            is_new = made is not None or self._memory.home_of(worker, moment) == NOT_HERE
            if is_new and (made is not None or meetings.made[worker] == meetings.steps):
                self._memory.write(worker, moment, host, meetings.worker_at(worker, made))
        for fragment, offset, residuals in meetings.means_at(made):
            self._write_means(fragment, moment, offset, residuals)
        common = meetings.options.workers
        if self._is_first_of_host() and (made is not None or self._memory.home_of(common, moment) == NOT_HERE):
            self._memory.write(common, moment, host, meetings.common_at(made))
        if made is not None and self._copies:
            self._send_copies(made, range(meetings.options.workers))

    def _write_means(self, fragment: int, moment: int, offset: int, residuals: Tensor) -> None:
        block = self._meetings.allotment.block
        if len(residuals):
            self._memory.write_blocks(self._blocks_of(fragment), moment, offset // block, residuals, block)

    def _blocks_of(self, fragment: int) -> int:
        """Their number in the memory."""
        return self._meetings.options.workers + 1 + fragment

    def _is_first_of_host(self) -> bool:
        world, rank = self._member.world, dist.get_rank()
        return all(world.host_of(other) != world.host_of(rank) for other in range(rank))

    def _send_copies(self, made: Prepared | None, workers: Sequence[int]) -> None:
        """What ranks keep after a meeting, of these workers, goes to the memory of another host. Collective."""
        world, meetings, rank = self._member.world, self._meetings, dist.get_rank()
        moment = meetings.number if made is None else made.number
        away = [world.away(other) for other in range(dist.get_world_size())]
        sent: list[Tensor] = []
        if away[rank] is not None:
            for worker in meetings.allotment.of(rank):
                if worker in workers:  # it may be at a later step than the latest meeting
                    its = self._memory.read(worker, moment) if made is None else meetings.worker_at(worker, made)
                    sent += messages(its)
            sent += [residuals for _, _, residuals in meetings.means_at(made) if len(residuals)]
        works = [dist.isend(message, away[rank]) for message in sent]
        for source in (other for other, to in enumerate(away) if to == rank):
            for worker in meetings.allotment.of(source):
                if worker in workers:
                    self._memory.write(worker, moment, world.host_of(source), received(source))
            for fragment in range(len(meetings.mean_residuals)):
                offset, length = meetings.allotment.shard(source, meetings.fragments[fragment].elements)
                residuals = torch.empty(length, dtype=torch.float32)
                if length:
                    dist.recv(residuals, source)
                self._write_means(fragment, moment, offset, residuals)
        for work in works:
            work.wait()

    # From one world to the next.

    def _take_up(self, cause: str) -> Recovery:
        member, meetings = self._member, self._meetings
        self._arrivals = member.arrivals()
        self._local.regroup(dist.group.WORLD)
        numbers, mades, saved = self._exchange()
        ahead = max(numbers)
        if ahead < 0:
            numbers, ahead = self._recall()
        was_behind = self._has_state and meetings.number < ahead
        if was_behind:
            self._make_late(ahead)
        meetings.prepared = None
        if self._has_state:
            self._end_meeting()  # if that had to wait for this world
            self._keep(None)  # of the first world
        if hand_on((meetings, *self._state), [number >= 0 for number in numbers]):
            self._begin_here()
        self._saved = max(s for s, number in zip(saved, numbers, strict=True) if number >= 0)
        recovery = LocalRecovery(member.world.epoch, member.members(), self._applied, cause, applied=was_behind)
        self._deal(mades, recovery)
        self._share_means(recovery)
        self._keep(None)
        if self._copies:
            self._send_missing_copies()
        dist.barrier()  # all that this world has is kept
        self._forget()
        return recovery

    def _exchange(self) -> tuple[list[int], list[list[int]], list[int]]:
        """By rank: the number of its latest meeting; the steps of each worker there; when it has saved. -1: nothing."""
        meetings, workers = self._meetings, range(self._meetings.options.workers)
        own = [NOT_HERE, self._saved, *(NOT_HERE for _ in workers)]
        if self._has_state:
            own = [meetings.number, self._saved, *(meetings.made.get(worker, NOT_HERE) for worker in workers)]
        told = gathered(own, dist.group.WORLD)
        return [n for n, *_ in told], [made for _, _, *made in told], [saved for _, saved, *_ in told]

    def _begin_here(self) -> None:
        """This rank has what all have, and no worker yet."""
        self._has_state = True
        self._applied = self._ended = self._meetings.steps

    def _make_late(self, ahead: int) -> None:
        prepared = self._meetings.prepared
        if prepared is None or prepared.number != ahead:
            raise RuntimeError(
                f"survive_local: this rank has made meeting {self._meetings.number} and others {ahead}, which it has "
                "not prepared: a defect of ringdp"
            )
        self._make()

    def _recall(self) -> tuple[list[int], int]:
        """No rank has the state: that of the latest meeting of which all was kept. As numbers of _exchange().

        RuntimeError, on all ranks, where there is none.
        """
        common = self._meetings.options.workers
        moments = self._whole_moments()
        if not moments:
            self._wait_for_hosts()
        if not moments or self._state:
            why = "state= is not kept" if self._state else "not all of it was kept"
            raise RuntimeError(
                f"survive_local: all ranks that had the state of the training are gone, and {why}: restart from a "
                "checkpoint"
            )
        moment = max(moments)
        has = self._memory.home_of(common, moment) != NOT_HERE
        if has:
            self._meetings.load_state_dict(self._memory.read(common, moment))
            self._begin_here()
        return [moment if of_rank[0] else NOT_HERE for of_rank in gathered([int(has)], dist.group.WORLD)], moment

    def _whole_moments(self) -> list[int]:
        """Meetings of which the hosts of this world together have all records. Collective."""
        records = range(self._meetings.options.workers + 1)
        own = [[*self._memory.moments(record), 0, 0][:2] for record in records]
        told = gathered([moment for of_record in own for moment in of_record], dist.group.WORLD)
        found = [{of_rank[2 * record + turn] for of_rank, turn in product(told, (0, 1))} for record in records]
        return sorted(set.intersection(*found) - {0})

    def _wait_for_hosts(self) -> None:
        """What is lacking may be on a host that has no rank here, and from which some come: for their world.

        Collective; WorldIsOver when it is there. As long as half of what a collective waits.
        """
        member, told = self._member, torch.zeros(1)
        here = {member.world.host_of(rank) for rank in range(dist.get_world_size())}
        until = time.monotonic() + member.timeout_s / 2
        while dist.get_rank() == 0 and not told and member.coming_hosts() - here and time.monotonic() < until:
            time.sleep(_PAUSE_S)
            told[0] = float(member.is_over())
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        if told:
            raise WorldIsOver("a state was waited for that is on a host whose ranks come")

    def _deal(self, mades: Sequence[Sequence[int]], recovery: LocalRecovery) -> None:
        """Who plays whom: workers that come to a rank come as they were kept."""
        meetings, rank, moment = self._meetings, dist.get_rank(), self._meetings.number
        players: list[int | None] = []
        for of_worker in zip(*mades, strict=True):
            most = max(of_worker)  # one that was about to move may be on two ranks
            players.append(of_worker.index(most) if most >= 0 else None)
        lost = [worker for worker, player in enumerate(players) if player is None]
        if not all(self._homes(lost)):
            self._wait_for_hosts()
        by_rank = dealt(players, dist.get_world_size())
        meetings.allot(by_rank)
        moving = [worker for to, own in enumerate(by_rank) for worker in own if players[worker] != to]
        homes = dict(zip(moving, self._homes(moving), strict=True))
        for to, own in enumerate(by_rank):
            for worker in (worker for worker in own if worker in homes):
                reader = to if to in homes[worker] else min(homes[worker], default=NOT_HERE)
                its = self._memory.read(worker, moment) if rank == reader else None
                if rank == reader != to:
                    for message in messages(its):
                        dist.send(message, to)
                elif rank == to:
                    if worker in meetings.workers:  # as it was before a move that was cut short
                        meetings.remove(worker)
                    meetings.add(worker, received(reader) if reader not in (rank, NOT_HERE) else its)
                if players[worker] is None or reader == NOT_HERE:
                    recovery.sources[worker] = self._source(reader, homes[worker])
                else:
                    recovery.moved.append(worker)

    def _homes(self, workers: Sequence[int]) -> list[dict[int, int]]:
        """Of each: by rank that reads what was kept of it at the latest meeting, the host that has kept it."""
        moment = self._meetings.number
        told = gathered([self._memory.home_of(worker, moment) for worker in workers] + [0], dist.group.WORLD)
        places = [{r: of_rank[n] for r, of_rank in enumerate(told)} for n in range(len(workers))]
        return [{r: home for r, home in of_worker.items() if home != NOT_HERE} for of_worker in places]

    def _source(self, reader: int, homes: dict[int, int]) -> str:
        if reader == NOT_HERE:
            return OUTER
        host, home = self._member.world.host_of(reader), homes[reader]
        return f"the memory of host {host}" if host == home else f"a copy of host {home} on host {host}"

    def _share_means(self, recovery: LocalRecovery) -> None:
        """What codes have left out of means is where its owners have kept it; each rank takes what it owns now."""
        meetings, whole = self._meetings, []
        for fragment in range(len(meetings.mean_residuals)):
            elements, block = meetings.fragments[fragment].elements, meetings.allotment.block
            values, is_there = self._memory.read_blocks(self._blocks_of(fragment), meetings.number, elements, block)
            bits = values.view(torch.int32)
            bits[~is_there.repeat_interleave(block)[:elements]] = torch.iinfo(torch.int32).min
            found = is_there.to(torch.uint8)
            for told in (bits, found):  # all that have an element have the same bits, and the others less
                dist.all_reduce(told, op=dist.ReduceOp.MAX)
            lost = ~found.bool().repeat_interleave(block)[:elements]
            values[lost] = 0.0
            recovery.residuals_lost += int(lost.sum())
            whole.append(values)
        meetings.own_means(whole)

    def _send_missing_copies(self) -> None:
        """Of workers that a fault has left with one copy."""
        world, meetings = self._member.world, self._meetings
        workers = range(meetings.options.workers)
        homes = self._homes(workers)
        away = {rank: world.away(rank) for rank in range(dist.get_world_size())}
        players = {worker: rank for rank in away for worker in meetings.allotment.of(rank)}
        self._send_copies(None, [worker for worker in workers if away[players[worker]] not in homes[worker]])

    def _forget(self) -> None:
        """What this host has kept of workers that are elsewhere."""
        if not self._is_first_of_host():
            return
        world, allotment = self._member.world, self._meetings.allotment
        for rank in range(dist.get_world_size()):
            is_here = world.host_of(rank) == self._member.host
            has_copy = self._copies and (to := world.away(rank)) is not None and world.host_of(to) == self._member.host
            for worker in allotment.of(rank) if not (is_here or has_copy) else ():
                if self._memory.moments(worker):
                    self._memory.forget(worker)

    def _all_lines(self) -> list[str]:
        own = [f"state= has {counted(len(self._state), 'part')}", f"copies={self._copies}"]
        return [*own, *self._local.lines()]
