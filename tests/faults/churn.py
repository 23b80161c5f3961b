"""Training under churn: ranks are killed at random moments and replaced, and the bits are those of one process.

    python tests/faults/churn.py --kills 20 --seeds 0-19 --mixed     # a line per seed; status 1 if one differs

The ranks are those of a real supervisor; a thread beside it sends the signals. `--json` prints what was measured:
recoveries with their parts, from the end of a world until the first micro-batch of the next one; and what each rank has
open at the end, which must not depend on the worlds that it has been in: `--spare 1` kills the others only.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest and ringdp's own processes have this path
    sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "python"))

import ringdp
import torch
import torch.distributed as dist
from ringdp.elastic.recovery import Recovery
from ringdp.elastic.state import add_bits
from ringdp.elastic.supervisor import Supervisor
from ringdp.elastic.worlds import Worlds
from ringdp.testing import one_process
from torch import nn

MICRO_BATCHES = 24
DTYPES = ("float32", "bfloat16")
LEAVES = ringdp.elastic.Leaves(9600, micro_batch=4, micro_batches=MICRO_BATCHES, seed=5)
DATA = torch.randn(LEAVES.dataset_len, 16, generator=torch.Generator().manual_seed(0))
_TIMEOUT = timedelta(seconds=60)


def network(dtype: torch.dtype) -> nn.Module:
    """Dropout, BatchNorm, more than one bucket."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 64), nn.Linear(64, 1)]
    return nn.Sequential(*layers).to(dtype)


def loss_of(model: nn.Module, step: int, leaf: int) -> torch.Tensor:
    """Of the samples that Leaves gives this micro-batch: 300 steps are three epochs, in each of which all come once."""
    epoch = step // LEAVES.steps(0)
    x = DATA[LEAVES.indices(epoch, step - LEAVES.first_step(epoch), leaf)]
    return model(x.to(next(model.parameters()).dtype)).square().mean()


def hash_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of parameters, buffers and the optimizer's state. Collective if they are in shards."""
    whole = model.full_state_dict() if isinstance(model, ringdp.DistributedDataParallel) else model.state_dict()
    for rank in range(dist.get_world_size()) if isinstance(optimizer, ringdp.ZeroOptimizer) else ():
        optimizer.consolidate_state_dict(to=rank)
    digest = hashlib.sha256()
    for key, entry in [("", whole), *sorted(optimizer.state_dict()["state"].items())]:
        for name, value in sorted(entry.items()):
            digest.update(f"{key} {name} {value.dtype}".encode())
            add_bits(digest, value)
    return digest.hexdigest()


@functools.cache
def undisturbed(steps: int, dtype: str) -> str:
    """Of one process."""
    torch.set_num_threads(1)
    model = network(getattr(torch, dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(model: nn.Module, rank: int, step: int, leaf: int) -> torch.Tensor:
        return loss_of(model, step, leaf)

    one_process(model, optimizer, loss, steps=steps, micro_batches=MICRO_BATCHES)
    return hash_of(model, optimizer)


def wrapped(dtype: str, stage: int) -> tuple[ringdp.DistributedDataParallel, torch.optim.Optimizer]:
    """On a rank, whose default group it makes."""
    torch.set_num_threads(1)
    dist.init_process_group("ringdp")
    ddp = ringdp.DistributedDataParallel(network(getattr(torch, dtype)), micro_batches=MICRO_BATCHES, zero_stage=stage)
    if stage:
        return ddp, ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1e-3)
    return ddp, torch.optim.AdamW(ddp.parameters(), lr=1e-3)


def member_and_store() -> tuple[str, dist.TCPStore]:
    """The number of this process among all members of the job, and the job's store."""
    member, _, place = os.environ["RINGDP_MEMBER"].partition("@")
    host, _, port = place.rpartition(":")
    return member, dist.TCPStore(host, int(port), is_master=False, timeout=_TIMEOUT)


class Teller:
    """Tells the job's store of this process's recoveries, in every step, as it may be killed."""

    def __init__(self, store: dist.Store) -> None:
        self._store, self._told = store, 0

    def tell(self, recoveries: Sequence[Recovery]) -> None:
        """Those since the last call."""
        for recovery in recoveries[self._told :]:
            self._store.append("worlds", json.dumps(vars(recovery) | {"seconds": recovery.seconds()}) + "\n")
        self._told = len(recoveries)


def on_rank(options: argparse.Namespace) -> None:
    """The program of a member."""
    ddp, optimizer = wrapped(options.dtype, options.stage)
    member, store = member_and_store()
    teller = Teller(store)

    @ringdp.elastic.survive(model=ddp, optimizer=optimizer, speed=options.speed, shards=options.shards)
    def train(step: int, leaves: Sequence[int]) -> None:
        teller.tell(train.recoveries)
        for leaf in leaves:
            with ringdp.leaf(step, leaf):
                loss_of(ddp, step, leaf).backward()
            time.sleep(options.leaf_ms / 1000)
        if dist.get_rank() == 0:
            store.set("step", str(step))

    train(options.steps)
    teller.tell(train.recoveries)
    result = {"hash": hash_of(ddp, optimizer), "worlds": len(train.recoveries), **open_here()}
    store.set(f"result/{member}", json.dumps(result))
    dist.destroy_process_group()


def open_here() -> dict[str, int]:
    """Of this process."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("memfd:")
    listed = {name: len(os.listdir(f"/proc/self/{folder}")) for name, folder in (("files", "fd"), ("threads", "task"))}
    return {**listed, "memfds mapped": mapped}


class Killer(threading.Thread):
    """Kills ranks at random moments, never the last one, until it has killed enough or the training is over."""

    def __init__(self, supervisor: Supervisor, store: dist.Store, options: argparse.Namespace, seed: int) -> None:
        super().__init__(daemon=True)
        self._supervisor, self._store, self._options = supervisor, store, options
        self._random = random.Random(seed)
        self.killed = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """See the class."""
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def _run(self) -> None:
        """Begins with the first step."""
        while not self._store.check(["step"]):
            time.sleep(0.01)
        first = sorted((process.popen for process in [*self._supervisor._processes.values()]), key=lambda one: one.pid)
        dead = set(first[: self._options.spare])  # or never to be; not pids, which come again
        while self.killed < self._options.kills:
            time.sleep(self._random.uniform(0, 2 * self._options.every))
            if int(self._store.get("step")) > self._options.steps - 5:
                return
            if self._has_copies():  # a rank and the one before it must not die at once
                self._wait_for_steps(2)
                if int(self._store.get("step")) > self._options.steps - 5:
                    return
            for _ in range(2 if self._random.random() < 0.2 and not self._has_copies() else 1):
                processes = [process for process in [*self._supervisor._processes.values()] if process.in_world]
                alive = [process.popen for process in processes if process.popen not in dead]
                if len(alive) + self._options.spare > 2 and alive and self.killed < self._options.kills:
                    dead.add(chosen := self._random.choice(alive))
                    os.kill(chosen.pid, signal.SIGKILL)
                    self.killed += 1

    def _has_copies(self) -> bool:
        """Also where 16-bit parameters are stepped by torch."""
        return self._options.stage > 0 and (self._options.shards == "copies" or self._options.dtype != "float32")

    def _wait_for_steps(self, number: int) -> None:
        last = int(self._store.get("step")) + number
        while int(self._store.get("step")) < min(last, self._options.steps - 1):
            time.sleep(0.01)


def supervised(
    options: argparse.Namespace, seed: int, program: Sequence[str], replacements: int, kind: type[Killer]
) -> tuple[dist.TCPStore, dict[str, Any]]:
    """A job of this program, and a killer beside it: its store, and what is reported of every job."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    server.set("worlds", "")
    own = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=_TIMEOUT)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port), "OMP_NUM_THREADS": "1"}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    place, begin = f"127.0.0.1:{server.port}", time.monotonic()
    supervisor = Supervisor(options.ranks, 1, replacements, program, Worlds(server), place)
    killer = kind(supervisor, own, options, seed)
    killer.start()
    status = supervisor.run()
    if killer.error is not None:
        raise killer.error
    return server, {
        "seed": seed,
        "status": status,
        "killed": killer.killed,
        "seconds": time.monotonic() - begin,
        "worlds": [json.loads(line) for line in server.get("worlds").decode().splitlines()],
    }


def churn(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One training; what its members say."""
    program = [
        sys.executable,
        __file__,
        "--rank",
        *(f"--{n}={getattr(options, n)}" for n in ("steps", "dtype", "speed", "stage", "shards")),
    ]
    program.append(f"--leaf-ms={options.leaf_ms}")
    server, report = supervised(options, seed, program, options.kills, Killer)
    results = [
        json.loads(server.get(key))
        for key in map(_result_key, range(Worlds(server).new_member()))
        if server.check([key])
    ]
    return {
        **report,
        "stage": options.stage,
        "dtype": options.dtype,
        "members": len(results),
        "keys": server.num_keys(),
        "open": [{key: value for key, value in result.items() if key != "hash"} for result in results],
        "hashes": sorted({result["hash"] for result in results}),
    }


def _result_key(member: int) -> str:
    return f"result/{member}"


def text_of_recoveries(worlds: Sequence[dict[str, Any]]) -> str:
    """Of worlds that a fault has brought about, each as long as on its slowest rank; "" without one."""
    by_epoch: dict[int, float] = {}
    for world in worlds:
        if world["cause"]:
            by_epoch[world["epoch"]] = max(world["seconds"], by_epoch.get(world["epoch"], 0.0))
    faults = [*by_epoch.values()]
    return f"recovery {1e3 * statistics.median(faults):.0f} ms, at most {1e3 * max(faults):.0f}" if faults else ""


def line(report: dict[str, Any]) -> str:
    """For people."""
    times = text_of_recoveries(report["worlds"])
    epochs = max((world["epoch"] for world in report["worlds"]), default=0)
    verdict = "equal" if report["equal"] else "DIFFERENT"
    by_age = sorted(report["open"], key=lambda rank: rank["worlds"])
    held = [f"{r['files']} files and {r['memfds mapped']} memfds after {r['worlds']}" for r in by_age[:1] + by_age[-1:]]
    head = f"seed {report['seed']:3}, stage {report['stage']}, {report['dtype']}"
    return (
        f"{head}: {report['killed']} killed, {epochs} worlds, {report['members']} ranks at the end, "
        f"{report['seconds']:.1f} s; {times}; open: {', '.join(held)} worlds; {verdict}"
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    made.add_argument("--ranks", type=int, default=8)
    made.add_argument("--steps", type=int, default=300)
    made.add_argument("--kills", type=int, default=20)
    made.add_argument("--spare", type=int, default=0, help="so many of the first ranks are never killed")
    made.add_argument("--every", type=float, default=1.0, help="seconds between two kills, on average")
    made.add_argument("--leaf-ms", type=float, default=20.0, help="that a micro-batch takes at least")
    made.add_argument("--dtype", default=DTYPES[0], choices=DTYPES)
    made.add_argument("--mixed", action="store_true", help="another stage and dtype for each seed")
    made.add_argument("--stage", type=int, default=0, choices=range(4), help="of ZeRO")
    made.add_argument(
        "--shards", default="auto", choices=("auto", "copies"), help="copies: neighbours do not die at once"
    )
    made.add_argument("--speed", default="even", choices=("even", "auto"))
    made.add_argument("--seeds", default="0", help="N or N-M")
    made.add_argument("--json", type=Path, help="a file for all that was measured")
    made.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where one seed differs."""
    options = parser().parse_args(arguments)
    if options.rank:
        on_rank(options)
        return 0
    first, _, last = options.seeds.partition("-")
    reports = []
    for seed in range(int(first), int(last or first) + 1):
        if options.mixed:
            options.stage, options.dtype = seed % 4, DTYPES[seed // 4 % 2]
        report = churn(options, seed)
        report["equal"] = report["status"] == 0 and report["hashes"] == [undisturbed(options.steps, options.dtype)]
        reports.append(report)
        print(line(report), flush=True)
    if options.json:
        options.json.write_text(json.dumps(reports))
    return 0 if all(report["equal"] for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
