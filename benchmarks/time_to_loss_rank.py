"""A rank of time_to_loss.py: one of SYSTEMS trains the GPT, and is judged by copies of its parameters afterwards.

The JOB of runner/job.py is the JSON of Job. Clocks are those of one machine.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from ringdp.examples.gpt import Shape
from ringdp.examples.gpt_task import Task
from ringdp.examples.over_time import Training, synchronous, timed
from runner.job import serve
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as Stock

ONE_PROCESS = "one process"  # which plays all workers with their mean gradient
ONE_BUCKET_MB = 1 << 20
WHOLE_STEPS = 2  # of PowerSGD, at the beginning: the least that torch's hook takes
LIGHTHOUSE_PORT = 29511


@dataclass(frozen=True)
class Job:
    """What all systems have in common, but for the group's backend.

    note: steps from one copy of the parameters to the next. shape, batch, rate: of the model, of a worker's step, of
    AdamW. warm_up: steps in which the rate grows. every, outer_rate, outer_momentum: of DiLoCo. power: rank of
    PowerSGD. freeze: steps of 1-bit Adam that send whole gradients.
    """

    system: str
    backend: str
    workers: int
    steps: int
    note: int
    shape: dict[str, int]
    batch: int
    rate: float
    warm_up: int
    every: int
    outer_rate: float
    outer_momentum: float
    power: int
    freeze: int


def adamw(rate: float, parameters: Any) -> torch.optim.AdamW:
    """Of every system."""
    return torch.optim.AdamW(parameters, lr=rate)


def one_process(job: Job, model: nn.Module) -> Training:
    """No communication: what every synchronous float32 system computes, up to rounding."""
    return synchronous(model, adamw(job.rate, model.parameters()), workers=range(job.workers))


def stock(job: Job, model: nn.Module) -> Training:
    """torch's DistributedDataParallel."""
    return synchronous(Stock(model, gradient_as_bucket_view=True), adamw(job.rate, model.parameters()))


def stock_power_sgd(job: Job, model: nn.Module) -> Training:
    """The same with torch's hook, which aborts over gloo with more than one bucket."""
    ddp = Stock(model, gradient_as_bucket_view=True, bucket_cap_mb=ONE_BUCKET_MB)
    state = PowerSGDState(None, matrix_approximation_rank=job.power, start_powerSGD_iter=WHOLE_STEPS)
    ddp.register_comm_hook(state, powerSGD_hook)
    return synchronous(ddp, adamw(job.rate, model.parameters()))


def wrapped(compress: Any, job: Job, model: nn.Module) -> Training:
    """ringdp's DistributedDataParallel."""
    ddp = ringdp.DistributedDataParallel(model, gradient_as_bucket_view=True, compress=compress)
    return synchronous(ddp, adamw(job.rate, model.parameters()))


def power_sgd(job: Job, model: nn.Module) -> Training:
    """The same factors as stock_power_sgd's."""
    return wrapped(ringdp.PowerSGD(job.power, start=WHOLE_STEPS), job, model)


def one_bit_adam(job: Job, model: nn.Module) -> Training:
    """Signs of momenta, as second moments do not bear sums of gradients of several steps."""
    ddp = ringdp.DistributedDataParallel(model, gradient_as_bucket_view=True, compress="sign")
    return synchronous(ddp, ringdp.OneBitAdam(ddp, lr=job.rate, freeze=job.freeze))


def diloco(arguments: dict[str, Any], job: Job, model: nn.Module) -> Training:
    """Workers that step alone and meet."""
    arguments = {"every": job.every, "outer_lr": job.outer_rate, "momentum": job.outer_momentum, **arguments}
    local = ringdp.DiLoCo(model, partial(adamw, job.rate), workers=job.workers, **arguments)
    period = job.every // arguments.get("fragments", 1)
    return Training(model, local.optimizers(), local.step, local.outer, period, end=local.state_dict)  # which waits


def torchft_diloco(job: Job, model: nn.Module) -> Training:
    """The same by torchft: a replica group of one rank on each host, a lighthouse on the first one."""
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    first = os.environ["MASTER_ADDR"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((first, LIGHTHOUSE_PORT))  # sends nothing
        own = probe.getsockname()[0]
    keeper = LighthouseServer(f"0.0.0.0:{LIGHTHOUSE_PORT}", job.workers) if dist.get_rank() == 0 else None
    dist.barrier()
    store = dist.TCPStore(own, 0, is_master=True, wait_for_workers=False)
    state: dict[str, Any] = {"load_state_dict": lambda state: None, "state_dict": dict}  # nobody joins later
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        min_replica_size=job.workers,
        use_async_quorum=False,
        rank=0,
        world_size=1,
        store_addr=own,
        store_port=store.port,
        lighthouse_addr=f"http://{first}:{LIGHTHOUSE_PORT}",
        hostname=own,
        replica_id=f"replica_{dist.get_rank()}_",
        init_sync=False,
        **state,
    )
    inner = adamw(job.rate, model.parameters())
    momentum = job.outer_momentum
    outer = torch.optim.SGD(model.parameters(), lr=job.outer_rate, momentum=momentum, nesterov=momentum > 0)
    local = DiLoCo(manager, [model], inner, outer, sync_every=job.every, use_bucketization=True)
    local.__enter__()

    def end() -> None:
        local.__exit__(None, None, None)
        met, store_then = manager.current_step(), store  # which must live so long
        dist.barrier()
        manager.shutdown(wait=False)
        del store_then
        if keeper is not None:
            keeper.shutdown()
        if met != job.steps // job.every:  # it goes on alone where something fails
            raise RuntimeError(f"torchft has met {met} times in {job.steps} steps: its own words are above")

    return synchronous(model, inner, period=job.every, end=end)  # after a meeting all have the outer parameters


STREAMING = {"fragments": 4, "delay": 4, "alpha": 0.5, "compress": "int4"}
# name -> the backend of its group, and what makes it
SYSTEMS: dict[str, tuple[str, Callable[[Job, nn.Module], Training]]] = {
    "gloo": ("gloo", stock),
    "gloo-powersgd": ("gloo", stock_power_sgd),
    "ringdp": ("ringdp", partial(wrapped, None)),
    "ringdp-int8": ("ringdp", partial(wrapped, "int8")),
    "ringdp-fp8": ("ringdp", partial(wrapped, "fp8")),
    "ringdp-sign": ("ringdp", one_bit_adam),
    "ringdp-powersgd": ("ringdp", power_sgd),
    "ringdp-auto-int8": ("ringdp", partial(wrapped, "auto:int8")),
    "diloco": ("ringdp", partial(diloco, {})),
    "diloco-int4-streaming": ("ringdp", partial(diloco, STREAMING)),
    "torchft-diloco": ("gloo", torchft_diloco),
    ONE_PROCESS: ("gloo", one_process),
}


def run(job: Job) -> dict[str, Any]:
    """Of this rank. Collective."""
    task = Task(Shape(**job.shape), job.batch, job.workers)
    model = task.model()
    training = SYSTEMS[job.system][1](job, model)

    def rate(step: int) -> float:
        return job.rate * min(1.0, step / max(1, job.warm_up))

    return timed(task, model, training, steps=job.steps, note=job.note, rate=rate)


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
