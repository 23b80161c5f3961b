"""`ringdp.watch(model, optimizer)`: drift, stragglers and lost overlap, looked for all through a job.

What ringdp's wrapper measures it keeps itself, and on the CPU its buckets carry checksums of a part of the parameters.
Of other wrappers the optimizer's step notes when it came, what the wrapper has measured and, in every eighth step,
checksums of a few blocks of the parameters. A thread makes figures of that and puts them into the job's store, and on
rank 0 of the group judges those of all ranks. Nothing is collective, so ranks that do not watch do no harm, and no step
waits for another rank.

Python that runs once in a step finds its code in no cache: 1.7 us in a loop are 29 us after 20 ms of products of
matrices, and time.thread_time() alone takes 10. So most steps do next to nothing here.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ringdp import _native
from ringdp.ddp.modes import ring_options
from ringdp.innermost import innermost
from ringdp.text.units import counted, names
from ringdp.tools.attach.finding import Finding
from ringdp.tools.observe.prometheus import serve_if_asked
from ringdp.tools.watch.blocks import LANES, STEPPED_ALONE, Blocks, as_number, why_no_longer, why_not_compared
from ringdp.tools.watch.effort import Effort
from ringdp.tools.watch.figures import KEPT, ROW_BYTES, Row, figures_of, packed, unpacked
from ringdp.tools.watch.judge import Judge
from ringdp.tools.watch.measures import Measures
from ringdp.tools.watch.reports import Board, Report, why_no_store
from ringdp.tools.watch.samples import Samples

log = logging.getLogger("ringdp.watch")
_C = _native.load()
_STOP_S = 5.0  # how long stop() waits for the thread, which may be held by a store that is gone
_LOOK = 8  # steps from one look at the parameters to the next
_REPORT = 16  # steps from one report to the next, of ranks that look at every step
_LATER = 8  # steps after which rank 0 reads what the others have written
_ADAPT = 2  # reports after which it does more or less
_REPEATED = 2  # reports whose contents a report has, because rank 0 may come late
_PATIENCE = 8  # reports after which a rank that has sent nothing new is named, and no longer waited for
_running: dict[int, Watch] = {}  # by ordinal
_expected: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()  # by RINGDP_WATCH=1


def watch(
    model: torch.nn.Module, optimizer: Optimizer | None = None, *, repeat_minutes: float = 10.0, budget: float = 0.005
) -> Watch:
    """Looks for drift, stragglers and lost overlap from now on; findings are lines of the log `ringdp.watch`.

    model: a DistributedDataParallel, ringdp's or torch's, over any backend; of other models only stragglers are looked
        for, and only in groups of backend ringdp. optimizer: whose steps count; None: the first that steps a parameter
        of the model. repeat_minutes: how often the same finding is said again. budget: the part of a step's time that
        it may take itself; it looks at fewer steps or blocks where that would be more.

    Not collective: ranks that do not call it are named and left out. Call it on all ranks, after
    init_process_group(). Ends with `.stop()`, as a context manager, or with the process. RuntimeError without a
    process group or when the model is watched already, TypeError or ValueError on bad arguments. Its own failure later
    on is a line of the log and ends it, never the training.
    """
    _check(model, optimizer, repeat_minutes, budget)
    for other in [one for one in running() if one.watches(model)]:
        if not other.automatic:
            raise RuntimeError("ringdp.watch: this model is watched already: stop() that watch first")
        other.stop()
    return Watch(model, optimizer, repeat_minutes, budget)


def expect(wrapper: DistributedDataParallel) -> None:
    """Watches it from the first step with its parameters on, unless the script does; its own watch() takes the place.

    Not called in a step: torch does not allow hooks to be added there.
    """
    _install()
    _expected.add(wrapper)


def _begin_expected(optimizer: Optimizer) -> None:
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for wrapper in [wrapper for wrapper in _expected if any(id(p) in stepped for p in wrapper.parameters())]:
        _expected.discard(wrapper)
        if any(one.watches(wrapper) for one in running()):
            continue
        try:
            watch(wrapper).automatic = True
        except Exception as error:  # whatever it is, the training goes on
            log.warning("ringdp.watch does not watch a model: %s", error)


def _check(model: object, optimizer: object, repeat_minutes: float, budget: float) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"ringdp.watch: model is a {type(model).__name__}, not a torch.nn.Module")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TypeError(f"ringdp.watch: optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    if not 0 < budget <= 1:
        raise ValueError(f"ringdp.watch: invalid value '{budget}' for budget (expected above 0, at most 1)")
    if not repeat_minutes >= 0:
        raise ValueError(f"ringdp.watch: invalid value '{repeat_minutes}' for repeat_minutes (expected 0 or more)")
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("ringdp.watch: there is no process group: call init_process_group() first")


class _Note(NamedTuple):
    """One step. key: None where it is not looked at."""

    number: int
    clock: int
    key: int | None = None
    raw: Any = None
    sums: Sequence[tuple[int, Any]] = ()
    delay: tuple[int, float] | None = None


class Watch:
    """What watch() returns. `rank` and `ranks`: of the group; `measures`: for Prometheus."""

    def __init__(self, model: torch.nn.Module, optimizer: Optimizer | None, repeat_minutes: float, budget: float):
        self._model = weakref.ref(model)
        self._optimizer = weakref.ref(innermost(optimizer)) if optimizer is not None else None
        self._parameters = {id(parameter) for parameter in model.parameters()}
        is_wrapped = isinstance(model, DistributedDataParallel)
        group = model.process_group if is_wrapped else dist.group.WORLD
        self.rank, self.ranks = group.rank(), dist.get_process_group_ranks(group)
        device = torch.device(model.device_type) if is_wrapped else group._device_types[0]
        self._sequence = group._get_backend(device)._get_sequence_number_for_group
        self._has_delays = ring_options(group, device) is not None and self.rank == 0
        self._delays: tuple[int, list[int]] | None = None
        why = why_not_compared(model)
        self._blocks = None if why else Blocks(model)
        self._samples: Samples | None = None
        self.measures = Measures(group.group_name, self.rank, model)
        self._figures = figures_of(model)
        self._budget = budget
        self._judge = Judge(self.ranks, self._blocks.describe if self._blocks else str)
        self._repeat_s = 60 * repeat_minutes
        self._said: dict[tuple[str, tuple[int, ...]], float] = {}
        self._key, self._number = 0, -1
        self._notes: deque[tuple[Any, ...]] = deque(maxlen=KEPT)
        self._times: deque[int] = deque(maxlen=3)
        self._period = max(_REPORT, len(self.ranks) // 32 * _LOOK)  # rank 0 reads as many reports as there are ranks
        self._reports = 0
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.post = _Post(self, model) if len(self.ranks) > 1 else None
        self._is_alone = self.post is None or not self.post.expected
        self._flush = True
        self.automatic = False
        serve_if_asked()
        _install()
        if hasattr(model, "zero_stage") and not why:
            self._samples = Samples(model, budget)
        self._effort = self._first_effort()
        self._is_light = self._can_be_light()
        _running[self.measures.ordinal] = self
        if why:
            log.info("ringdp.watch: parameters are not compared: %s", why)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def watches(self, model: object) -> bool:
        """Whether it is about this model."""
        return self._model() is model

    def __repr__(self) -> str:
        state, steps = "stopped after " if self._ended.is_set() else "", max(0, self._number)
        return f"<ringdp.watch of rank {self.rank} of {len(self.ranks)}: {state}{counted(steps, 'step')}>"

    def stop(self) -> None:
        """Judges what has been reported so far, and ends. A second call does nothing."""
        self._end(flush=True)

    def _end(self, *, flush: bool) -> None:
        if self._ended.is_set() or self.measures.ordinal not in _running:
            return
        _running.pop(self.measures.ordinal, None)
        self._flush = flush
        self._ended.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_S)
        self._sequence = int  # keeps no group alive
        for part in (self._figures, self._samples):
            try:
                if part is not None:
                    part.close()
            except Exception as error:  # a wrapper that is half gone
                log.debug("ringdp.watch: %r", error)

    def _fail(self, error: Exception) -> None:
        log.warning("ringdp.watch stops on rank %d, and the training goes on without: %r", self.rank, error)
        self._end(flush=False)

    # In the training thread.

    def before_step(self, optimizer: Optimizer) -> None:
        """Called before every step of every optimizer of the process."""
        is_sampled = self._number % _LOOK == 0  # a step of which there is little to do is measured for all of them
        began = time.perf_counter() if is_sampled else 0.0
        if not self._counts(optimizer):
            return
        self._number = number = self._number + 1
        if self._is_light and number % _LOOK:
            if is_sampled:
                self.measures.in_steps += (time.perf_counter() - began) * (_LOOK - 1)
            return
        if self._model() is None:
            self._end(flush=False)
            return
        began = time.thread_time()
        try:
            self._look(optimizer)
        except Exception as error:  # whatever it is, the training goes on
            self._fail(error)
        self.measures.in_steps += time.thread_time() - began

    def _counts(self, optimizer: Optimizer) -> bool:
        counted = self._optimizer() if self._optimizer is not None else None
        if counted is None and any(id(p) in self._parameters for g in optimizer.param_groups for p in g["params"]):
            self._optimizer, counted = weakref.ref(optimizer), optimizer
        return counted is optimizer

    def _first_effort(self) -> Effort:
        return Effort(self._budget, blocks=1 if self._is_sampled else LANES)

    def _can_be_light(self) -> bool:
        """Whether there is nothing to note in a step: only the thread is woken now and then."""
        return self._figures.are_kept and (self._blocks is None or self._is_sampled) and not self._takes_delays()

    @property
    def _is_sampled(self) -> bool:
        """Whether the wrapper's buckets carry checksums of the parameters."""
        return self._samples is not None and self._samples.is_carried

    def _look(self, optimizer: Optimizer) -> None:
        group = getattr(self._model(), "process_group", None)
        if group is not None and group.group_name != self.measures.group:
            log.warning("ringdp.watch ends on rank %d: the model has another group now: watch it again", self.rank)
            self._end(flush=False)
            return
        clock, number, stride = self._figures.clock(), self._number, self._effort.stride
        if self._figures.are_kept:
            looks = not self._is_light and number > 0 and number % (_LOOK * stride) == 0
            sums = self._sums(number // _LOOK, optimizer) if looks else []
            if looks or self._takes_delays():
                before, self._key = self._key, self._figures.read()
                if self._key != before:  # otherwise ranks have stepped alone
                    self._notes.append((number, clock, self._key, None, sums, self._delay(number)))
        else:
            key = self._sequence() if number and number % max(stride, self._figures.stride) == 0 else self._key
            if key == self._key:  # not its turn, or ranks have stepped alone and have nothing to compare
                self._notes.append((number, clock))
            else:
                self._key = key
                sums = self._sums(number // _LOOK, optimizer) if number % (_LOOK * stride) == 0 else []
                self._notes.append((number, clock, key, self._figures.read(), sums, self._delay(number)))
        is_due = number % min(KEPT // 2, self._period * stride) == (0 if self.rank else _LATER)
        if number and (is_due or (self._samples is not None and not self.rank and self._samples.has_found())):
            self._start_thread()
            self._wake.set()

    def _sums(self, look: int, optimizer: Optimizer) -> list[tuple[int, Any]]:
        model = self._model()
        if self._blocks is None or self._is_sampled:
            return []
        if model.device_type != "cpu" and torch.cuda.is_current_stream_capturing():
            return []
        if why := why_no_longer(model, optimizer):
            log.warning("ringdp.watch: parameters are no longer compared: %s", why)
            self._blocks = None
            return []
        return self._blocks.sums(look, self._effort.blocks)

    def _takes_delays(self) -> bool:
        """Where the ranks' own waits say it, too, that is cheaper."""
        return self._has_delays and (self._is_alone or not self._figures.has_waits)

    def _delay(self, number: int) -> tuple[int, float] | None:
        """For which rank the others have waited most since the last call, and for how many seconds of each step."""
        if not self._takes_delays():
            return None
        name = self.measures.group
        now = next((g["delays_ns"] for g in _C.stats()["groups"] if g["name"] == name), None)
        if now is None:
            return None
        before, self._delays = self._delays, (number, now)
        if before is None:
            return None
        lost = [after - then for after, then in zip(now, before[1], strict=True)]
        rank = max(range(len(lost)), key=lost.__getitem__)
        return rank, lost[rank] * 1e-9 / (number - before[0])

    # In the thread.

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ringdp-watch", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self._wake.wait()
                self._wake.clear()
                ended = self._ended.is_set()
                if not ended or self._flush:
                    self._report()
                if ended:
                    break
            if self.post is not None and self._flush:
                self.post.close()
        except Exception as error:
            if self._ended.is_set():  # at the end of a job the store may be gone
                log.info("ringdp.watch: the last report of rank %d is lost: %r", self.rank, error)
            else:
                self._fail(error)

    def _report(self) -> None:
        worked = time.thread_time()
        was_sampled = self._is_sampled
        drifts = self._samples.take() if self._samples is not None else []
        if self._is_sampled != was_sampled:  # a communication hook was registered
            self._effort = self._first_effort()
        rows, sums = self._drain()
        if self.rank == 0:
            self._judge.add(self.rank, rows, sums)
        reporting = {self.rank}
        if self.post is not None:
            for rank, report in self.post.exchange(rows, sums, self._number, by_step=not self._is_sampled):
                self._judge.add(rank, report.rows, report.sums)
            reporting |= self.post.expected
            self._is_alone = len(reporting) == 1
        if self.rank == 0:
            for finding in [*self._judge.drifted(drifts), *self._judge.findings(reporting)]:
                self._say(finding)
        if self._samples is not None:
            self._note_samples(self._samples)
        self.measures.compared = self._judge.compared + (self._samples.compared if self._samples is not None else 0)
        self._is_light = self._can_be_light()
        self.measures.in_thread += time.thread_time() - worked
        self._reports += 1
        if self._reports % _ADAPT == 1:
            self._effort.adapt(self.measures.in_training + self.measures.in_thread, self.measures.step_seconds)
            if self._samples is not None:
                self._samples.adapt(self.measures.step_seconds)

    def _note_samples(self, samples: Samples) -> None:
        self.measures.in_passes = samples.seconds
        if samples.stepped_alone and self._blocks is not None:
            log.warning("ringdp.watch: parameters are no longer compared: %s", STEPPED_ALONE)
            self._blocks = None

    def _drain(self) -> tuple[bytes, list[tuple[int, int, int]]]:
        noted: list[Row] = []
        sums: list[tuple[int, int, int]] = []
        steps, kept = self._figures.taken(self._effort.stride)
        for seconds in steps:
            self.measures.add_step(seconds)
        while self._notes:
            note = _Note(*self._notes.popleft())
            if note.key is not None:
                sums += [(note.key, block, as_number(value)) for block, value in note.sums]
            if note.delay is not None:
                self._judge.note_delay(note.key, *note.delay)
            if self._figures.are_kept:
                continue
            self._times.append(note.clock)
            if len(self._times) > 1:
                self.measures.add_step((self._times[-1] - self._times[-2]) * 1e-9)
            if note.key is None:
                continue
            row = self._figures.row(note.key, note.number, note.raw, tuple(self._times))
            if row.seconds > 0:  # torch's clock may be set back
                noted.append(row)
        rows = kept + packed(noted)
        self.measures.add_rows(rows)
        return rows, sums

    def _say(self, finding: Finding) -> None:
        self.measures.findings[finding.check] += 1
        about, now = (finding.check, finding.ranks), time.monotonic()
        if about in self._said and now - self._said[about] < self._repeat_s:
            return
        self._said[about] = now
        log.warning("ringdp.watch: %s: %s. What to do: %s.", finding.check, finding.seen, finding.fix)


class _Post:
    """The exchange of one watch. Its connection is made by the thread, which may wait for it."""

    def __init__(self, watch: Watch, model: torch.nn.Module) -> None:
        shapes = repr([(name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters()])
        self._signature = int.from_bytes(hashlib.blake2b(shapes.encode(), digest_size=8).digest(), "little")
        name = f"{watch.measures.group}/{self._signature:x}"
        taken = {one.post.name for one in running() if one.post is not None}
        self.name = next(free for number in count() if (free := f"{name}/{number}") not in taken)
        self._rank, self._ranks = watch.rank, watch.ranks
        self._board: Board | None = None
        self._why_not = why_no_store()
        self._rows = b""
        self._period = watch._period
        self._sums: deque[tuple[int, int, int]] = deque(maxlen=_REPEATED * watch._period // _LOOK * LANES)
        self._reports = 0
        self._latest: dict[int, bytes] = {}
        self._in_step = set(range(1, len(watch.ranks)))
        self._unchanged = dict.fromkeys(range(1, len(watch.ranks)), 0)  # by rank: periods of rank 0 since its last
        self._counted = -1  # the latest of these
        if self._why_not:
            log.warning("ringdp.watch: ranks are not compared: %s", self._why_not)

    @property
    def expected(self) -> set[int]:
        """On rank 0: the ranks that report."""
        return set() if self._why_not else {rank for rank, times in self._unchanged.items() if times < _PATIENCE}

    def exchange(
        self, rows: bytes, sums: list[tuple[int, int, int]], number: int, *, by_step: bool
    ) -> Iterator[tuple[int, Report]]:
        """Shows this rank's; on rank 0 those of the others that are new.

        rows: packed. number: of the step. by_step: parameters are compared where ranks look at the same steps.
        """
        if self._why_not:
            return
        if self._board is None:
            self._board = Board(self.name, self._rank, len(self._ranks))
        self._reports += 1
        most = max(len(rows), _REPEATED * self._period * ROW_BYTES)
        self._rows = (self._rows + rows)[-most:]
        self._sums.extend(sums)
        if self._rank:
            self._board.show(Report(self._signature, self._rows, self._sums).pack())
            if self._reports == _PATIENCE and not self._board.shows(0):
                text = "ringdp.watch: rank %d does not watch this model, so what rank %d reports is not judged"
                log.warning(text, self._ranks[0], self._ranks[self._rank])
            return
        if self._reports % (_PATIENCE // 2) == 1:
            self._board.show(b"")  # that it reads what the others show
        numbers = {row.key: row.number for row in unpacked(self._rows)} if by_step else {}
        for rank, content in self._board.reports().items():
            if content != self._latest.get(rank):
                self._latest[rank], self._unchanged[rank] = content, 0
                report = Report.unpack(content)
                self._name_out_of_step(rank, report, numbers)
                yield rank, report
        if number // self._period > self._counted:  # where drift was found there are more reports
            self._counted = number // self._period
            self._name_silent()

    def close(self) -> None:
        """On rank 0: takes the reports out of the store."""
        if self._board is not None and self._rank == 0:
            self._board.clear()

    def _name_out_of_step(self, rank: int, report: Report, numbers: Mapping[int, int]) -> None:
        """numbers: of the steps of this rank, by key."""
        if rank not in self._in_step or not numbers:
            return
        if any(numbers.get(row.key, row.number) != row.number for row in unpacked(report.rows)):
            self._in_step.discard(rank)
            text = "ringdp.watch: rank %d began at another step than rank %d: their parameters are not compared"
            log.warning(text, self._ranks[rank], self._ranks[0])

    def _name_silent(self) -> None:
        before = self.expected
        self._unchanged = {rank: times + 1 for rank, times in self._unchanged.items()}
        if silent := before - self.expected:
            ranks = names(self._ranks[rank] for rank in silent)
            log.warning("ringdp.watch: %s: nothing to compare with: no ringdp.watch of this model there", ranks)


@functools.cache
def _install() -> None:
    register_optimizer_step_pre_hook(_before_step)
    atexit.register(_end_all)
    os.register_at_fork(after_in_child=_forget_all)


def _before_step(optimizer: Optimizer, *_: object) -> None:
    if torch.compiler.is_compiling():
        return
    if _expected:
        _begin_expected(optimizer)
    for one in running():
        one.before_step(optimizer)


def _end_all() -> None:
    for one in running():
        one._end(flush=False)


def _forget_all() -> None:
    """In a forked child, which has no thread of theirs."""
    _running.clear()
    _expected.clear()


def running() -> list[Watch]:
    """Those that go on, in the order in which they began."""
    return list(_running.values())
