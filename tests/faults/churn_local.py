"""Workers that step alone under churn: a rank is killed every so many steps, and the bits are those of one process.

    python tests/faults/churn_local.py --every 100 --seeds 0-9      # a line per seed; status 1 if one differs
    python tests/faults/churn_local.py --every 100 --lose           # what was kept is gone each time: the job goes on

The ranks are those of a real supervisor; a thread beside it sends the signals, at random moments of every hundred
steps. `--json` prints what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest and ringdp's own processes have these paths
    _tests = Path(__file__).resolve().parents[1]
    sys.path[1:1] = map(
        str, (_tests.parent / "python", _tests, *map(_tests.__truediv__, ("python/local", "python/ddp")))
    )

import ringdp
import torch
import torch.distributed as dist
from churn import Killer, Teller, member_and_store, supervised, text_of_recoveries
from local_runs import arguments_of, differences, digests, expected, inner_of, model_of, own_loss

WORKERS, ROUND = 8, 20
COMPRESS = ("none", "int8", "topk-2bit")


def cell_of(compress: str) -> dict[str, Any]:
    """The arguments of the DiLoCo, and its model."""
    model = "wide" if compress == "topk-2bit" else "branching"
    return {"workers": WORKERS, "every": ROUND, "model": model, "compress": None if compress == "none" else compress}


@cache
def undisturbed(compress: str, steps: int) -> list[Any]:
    """Of one process."""
    torch.set_num_threads(1)
    return expected(cell_of(compress), steps)


def on_rank(options: argparse.Namespace) -> None:
    """The program of a member."""
    torch.set_num_threads(1)
    dist.init_process_group("ringdp")
    member, store = member_and_store()
    teller = Teller(store)
    cell = cell_of(options.compress)
    model = model_of(cell)
    local = ringdp.DiLoCo(model, inner_of(cell), seed=5, **arguments_of(cell))

    @ringdp.elastic.survive_local(local)
    def train(step: int, workers: Sequence[int]) -> None:
        teller.tell(train.recoveries)
        for worker in workers:
            with local.worker(worker):
                own_loss(model, worker, step).backward()
        time.sleep(options.step_ms / 1000)
        if dist.get_rank() == 0:
            store.set("step", str(step))

    train(options.steps)
    torch.save(digests(local.state_dict()), options.folder / f"result-{member}")
    dist.destroy_process_group()


class RegularKiller(Killer):
    """Kills a rank in every so many steps, never the last one."""

    def _run(self) -> None:
        for begin in range(0, self._options.steps - self._options.every + 1, self._options.every):
            self._kill_after(begin + self._random.randrange(self._options.every - 5))

    def _kill_after(self, step: int) -> None:
        while not self._store.check(["step"]) or int(self._store.get("step")) < step:
            time.sleep(0.005)
        time.sleep(self._random.uniform(0, 2 * self._options.step_ms / 1000))
        processes = [process for process in [*self._supervisor._processes.values()] if process.in_world]
        if len(processes) < 2:
            return
        if self._options.lose:
            os.ftruncate(self._supervisor._memory, 0)
        os.kill(self._random.choice(processes).popen.pid, signal.SIGKILL)
        self.killed += 1


def churn(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One training; what its members say."""
    with tempfile.TemporaryDirectory(prefix="churn-") as folder:
        program = [sys.executable, __file__, "--rank", f"--folder={folder}"]
        program += [f"--{name}={getattr(options, name)}" for name in ("steps", "compress")]
        program.append(f"--step-ms={options.step_ms}")
        _, report = supervised(options, seed, program, options.steps // options.every, RegularKiller)
        results = [torch.load(path, weights_only=False) for path in sorted(Path(folder).glob("result-*"))]
    return {
        **report,
        "compress": options.compress,
        "members": len(results),
        "differences": differences(results, undisturbed(options.compress, options.steps)) if results else ["no result"],
    }


def line(report: dict[str, Any]) -> str:
    """For people."""
    sources: dict[int, dict[str, str]] = {}
    for world in report["worlds"]:
        if world["cause"]:
            sources[world["epoch"]] = world["sources"]
    counts: dict[str, int] = {}
    for source in (source for of_world in sources.values() for source in of_world.values()):
        counts[source] = counts.get(source, 0) + 1
    times = f"{said}; " if (said := text_of_recoveries(report["worlds"])) else ""
    back = ", ".join(f"{number} workers from {source}" for source, number in counts.items())
    verdict = "DIFFERENT" if report["differences"] else "equal"
    return (
        f"seed {report['seed']:3}, {report['compress']}: {report['killed']} killed, {report['members']} ranks at the "
        f"end, {report['seconds']:.1f} s; {times}{back}; status {report['status']}, {verdict}"
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    made.add_argument("--ranks", type=int, default=4)
    made.add_argument("--steps", type=int, default=600, help=f"in rounds of {ROUND}")
    made.add_argument("--every", type=int, default=100, help="steps in which a rank is killed")
    made.add_argument("--step-ms", type=float, default=20.0, help="that a step takes at least")
    made.add_argument("--compress", default=COMPRESS[0], choices=COMPRESS)
    made.add_argument("--mixed", action="store_true", help="another of these for each seed")
    made.add_argument("--lose", action="store_true", help="what was kept is gone: the bits are not compared")
    made.add_argument("--seeds", default="0", help="N or N-M")
    made.add_argument("--json", type=Path, help="a file for all that was measured")
    made.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where one seed differs, or a job fails."""
    options = parser().parse_args(arguments)
    if options.rank:
        on_rank(options)
        return 0
    first, _, last = options.seeds.partition("-")
    reports = []
    for seed in range(int(first), int(last or first) + 1):
        if options.mixed:
            options.compress = COMPRESS[seed % len(COMPRESS)]
        report = churn(options, seed)
        report["equal"] = report["status"] == 0 and (options.lose or not report["differences"])
        reports.append(report)
        print(line(report), flush=True)
    if options.json:
        options.json.write_text(json.dumps(reports))
    return 0 if all(report["equal"] for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
