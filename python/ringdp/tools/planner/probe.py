"""One rank of a measurement: python -m ringdp.tools.planner.probe RESULT JOB (a ProbeJob as JSON; torchrun's variables)

Rank 0 leaves all ranks' reports in RESULT.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

import ringdp
from ringdp.tools.planner import workload
from ringdp.tools.planner.fake_memory import pass_memory, state_bytes
from ringdp.tools.planner.local_ranks import ProbeJob
from ringdp.tools.planner.preflight import two_units_bytes
from ringdp.tools.planner.workload import Workload

WARM_UP = 2
_COLLECTIVE_ROUNDS = 8


def held() -> int:
    """This process's memory without files: what N ranks share counts in equal parts, and programs' code not at all."""
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines())
    return sum(1024 * int(row[1]) for row in rows if row[0] in ("Pss_Anon:", "Pss_Shmem:"))


@contextmanager
def _timed(into: list[float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    into.append(time.perf_counter() - start)


class Training:
    """One rank's model, wrapper and optimizer, and how long its steps take."""

    def __init__(self, job: ProbeJob, chosen: Workload) -> None:
        self._workload, self._stage = chosen, job.zero_stage
        torch.manual_seed(1 + dist.get_rank())
        self._batch = chosen.batch(job.micro_batch)
        self.ddp = ringdp.DistributedDataParallel(
            chosen.model(),
            bucket_cap_mb=job.bucket_mb,
            zero_stage=job.zero_stage,
            gradient_as_bucket_view=job.zero_stage < 2,
            compress=job.compress or None,
        )
        if job.zero_stage:
            self.optimizer = ringdp.ZeroOptimizer(self.ddp.parameters(), chosen.optimizer)
        else:
            self.optimizer = chosen.optimizer(self.ddp.parameters())
        self.peak = 0

    def step(self, alone: bool) -> dict[str, float]:
        """Seconds of one step's parts; alone: without communication."""
        parts: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": []}
        dist.barrier()
        with self.ddp.no_sync() if alone else nullcontext():
            with _timed(parts["forward"]):
                loss = self._workload.loss(self.ddp, self._batch)
            with _timed(parts["backward"]):
                loss.backward()
        with _timed(parts["optimizer"]):
            if not alone or self._stage == 0:
                self.optimizer.step()
        del loss
        self.optimizer.zero_grad()
        return {name: seconds[0] for name, seconds in parts.items()}

    def watched_step(self) -> None:
        """A step that looks at memory where it is largest: after forward, and after backward."""
        loss = self._workload.loss(self.ddp, self._batch)
        self.peak = max(self.peak, held())
        loss.backward()
        del loss
        self.peak = max(self.peak, held())
        self.optimizer.step()
        self.peak = max(self.peak, held())
        self.optimizer.zero_grad()


def collectives(sizes: tuple[int, ...]) -> list[list[float]]:
    """[bytes, median seconds, CPU seconds of this process] of an all-reduce of each size."""
    shared = dist.group.WORLD._get_backend(torch.device("cpu")).supports_tensor_alloc(torch.device("cpu"))
    make = ringdp.empty if shared else torch.empty  # where the wrapper has its buckets
    rows = []
    for size in sizes:
        tensor = make(max(1, size // 4), dtype=torch.float32).zero_()
        seconds: list[float] = []
        for number in range(WARM_UP + _COLLECTIVE_ROUNDS):
            dist.barrier()
            if number == WARM_UP:
                cpu = time.process_time()
            with _timed(seconds):
                dist.all_reduce(tensor)
        used = (time.process_time() - cpu) / _COLLECTIVE_ROUNDS
        rows.append([tensor.nbytes, sorted(seconds[WARM_UP:])[_COLLECTIVE_ROUNDS // 2], used])
    return rows


def counted(chosen: Workload, micro_batch: int) -> dict[str, int]:
    """Bytes of a rank at stage 0 without measuring: parameters, gradients, state, saved by forward; batch; units."""
    model, batch = chosen.model(), chosen.batch(micro_batch)
    found = pass_memory(model, batch, chosen.loss)
    return {
        "parameters": found.parameters,
        "gradients": found.gradients,
        "state": state_bytes(chosen.optimizer, model.parameters()),
        "saved": found.saved,
        "batch": sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)),
        "two_units": two_units_bytes(model),
    }


def rehearse(job: ProbeJob, chosen: Workload) -> None:
    """Steps of a model of almost nothing, so that `held` has what training loads, starts and keeps for any model."""
    square = torch.ones(1024, 1024)
    torch.mm(square, square)  # BLAS keeps the buffers of large matrices
    small = replace(workload.mlp(layers=2, width=8), optimizer=chosen.optimizer)
    training = Training(job, small)
    for _ in range(WARM_UP):
        training.step(alone=False)


def _steps(training: Training, job: ProbeJob, alone: bool) -> Iterator[dict[str, float]]:
    """Steps after warming up, as many on all ranks."""
    for _ in range(WARM_UP):
        latest = torch.tensor(sum(training.step(alone).values()))
    dist.all_reduce(latest, dist.ReduceOp.MAX)
    for _ in range(max(2, min(job.steps, int(job.seconds / latest.item())))):
        yield training.step(alone)


def run(job: ProbeJob) -> dict[str, Any]:
    """This rank's report. Collective."""
    chosen = workload.load(job.workload)
    rehearse(job, chosen)
    gc.collect()
    base = held()
    training = Training(job, chosen)
    report: dict[str, Any] = {"base": base, "step": [], "ready": []}
    report |= {"forward": [], "backward": [], "optimizer": []}
    for parts in _steps(training, job, alone=True) if job.alone else ():
        for name, seconds in parts.items():
            report[name].append(seconds)
    for parts in _steps(training, job, alone=False):
        report["step"].append(sum(parts.values()))
        times = training.ddp.times()
        report["ready"].append([bucket.ready / times.backward for bucket in times.buckets])
    training.watched_step()
    report["peak"] = training.peak
    if job.compress:
        ledger = training.ddp.ledger()
        report["sent"] = ledger.bytes_sent / max(1, ledger.bytes_whole)
    report["collectives"] = collectives(job.sizes)  # last: shared memory keeps the pages of their tensors
    report["sizes"] = counted(chosen, job.micro_batch) if job.alone else {}
    report["buckets"] = [bucket.bytes for bucket in training.ddp.explain().buckets]
    return report


def main() -> None:
    """Joins the group, measures, and writes the reports of all ranks on rank 0."""
    torch.set_num_threads(1)
    job = ProbeJob(**{**(told := json.loads(sys.argv[2])), "sizes": tuple(told["sizes"])})
    dist.init_process_group("ringdp")
    try:
        report = run(job)
        reports: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(reports, report)
        if dist.get_rank() == 0:
            Path(sys.argv[1]).write_text(json.dumps(reports))
    finally:
        gc.collect()  # wrappers are parts of cycles and keep their group
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
