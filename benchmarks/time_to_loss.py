#!/usr/bin/env python3
"""How soon is a GPT as good as it is after so many plain steps? Stock DDP over gloo, and ways to send less.

    python benchmarks/time_to_loss.py --rate 100M --rtt 0,50               # needs root and /dev/net/tun
    python benchmarks/time_to_loss.py --systems all --torchft-python VENV/bin/python

Hosts with a rank each train the same model from the same start on the same samples, with AdamW at the same rate, one
system at a time, in another order in each round. The target is the loss on held-out text that plain float32 training
has reached after --target-step steps, in one process. Parameters are copied every --note steps and judged after the
training, so judging takes no time from it. Columns, medians over rounds:
    to target   seconds from the first step until the loss is at the target; x gloo: gloo's over that, by round
    at step     the step after which it is
    step        seconds of a step, in the second half of the training
    sent        bytes of a host's first rank in a step, from the counters of its interface, in the second half;
                of gloo: their share of gloo's
systems:
    gloo, gloo-powersgd     torch's DistributedDataParallel, in the latter with its PowerSGD hook and one bucket
    ringdp, ringdp-...      ringdp.DistributedDataParallel with compress=...; "sign" with OneBitAdam
    diloco, diloco-...      ringdp.DiLoCo with every=H; streaming: 4 fragments, delay 4, alpha 0.5
    torchft-diloco          torchft's DiLoCo over its ProcessGroupGloo; --torchft-python: an interpreter with torchft
                            and ringdp
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

from ringdp.examples.over_time import Run, run_of
from runner.hosts import Distance
from runner.job import run_job
from runner.program import Bar, Curves, add_outputs, check_least, check_outputs, head, listed, names, publish
from time_to_loss_rank import ONE_PROCESS, STREAMING, SYSTEMS, Job

CHOICE = tuple(name for name in SYSTEMS if name != ONE_PROCESS)
TORCHFT = "torchft-diloco"
SHARES = {"ringdp-int8": 0.255, "ringdp-fp8": 0.255, "ringdp-sign": 0.035}  # of float32's bytes, at most
WITHIN = 1.01
SLOW = 0.1  # Gb/s: for which the other bars are


def gigabits(text: str) -> list[float]:
    """Comma-separated rates, for argparse: 100M or 1G."""
    units = {"M": 1e-3, "G": 1.0}
    try:
        return [float(part[:-1]) * units[part[-1:].upper()] for part in text.split(",")]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r}: write bits per second as 100M or 1G") from None


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, help="one rank on each")
    parser.add_argument("--rate", type=gigabits, default=[SLOW], help="of each host's link: 100M (default), 1G")
    parser.add_argument("--rtt", type=listed(float), default=[0.0], help="ms; default 0")
    parser.add_argument("--systems", type=partial(names, CHOICE), default=[n for n in CHOICE if n != TORCHFT])
    parser.add_argument("--torchft-python", default=sys.executable, metavar="PATH", help="where torchft is installed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--target-step", type=int, default=100, help="of plain training (default 100)")
    parser.add_argument("--target", type=float, help="a loss instead, in nats per byte")
    parser.add_argument("--steps", type=int, default=160, help="of every system (default 160)")
    parser.add_argument("--note", type=int, default=5, help="steps between two copies (default 5)")
    parser.add_argument("--every", type=int, default=20, metavar="H", help="steps of DiLoCo's workers alone")
    parser.add_argument("--outer-lr", type=float, default=0.7, help="of all DiLoCos (default 0.7)")
    parser.add_argument("--outer-momentum", type=float, default=0.9, help="of all DiLoCos (default 0.9)")
    parser.add_argument("--power", type=int, default=4, metavar="RANK", help="of both PowerSGDs")
    parser.add_argument("--freeze", type=int, default=40, help="steps of OneBitAdam with whole gradients")
    parser.add_argument("--lr", type=float, default=1e-3, help="of AdamW, everywhere (default 0.001)")
    parser.add_argument("--warm-up", type=int, default=10, help="steps in which the rate grows")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256, help="of the model")
    parser.add_argument("--context", type=int, default=128, help="bytes of a sample")
    parser.add_argument("--batch", type=int, default=4, help="samples of a rank in a step")
    parser.add_argument("--check", action="store_true", help="status 1 when a bar is not held")
    add_outputs(parser, "rows, curves, settings and machine as JSON", "the loss over time")
    options = parser.parse_args(arguments)
    check_least(parser, options, hosts=2, rounds=1, target_step=1, note=1, power=1, freeze=1, warm_up=0, layers=1)
    check_least(parser, options, steps=2 * options.every, every=1, batch=1, context=1)
    if not all(rtt >= 0 for rtt in options.rtt):
        parser.error("--rtt: 0 ms or more")
    if not all(rate > 0 for rate in options.rate):
        parser.error("--rate: above 0")
    if not 0 < options.outer_lr < math.inf or not 0 <= options.outer_momentum < 1:
        parser.error("--outer-lr: above 0; --outer-momentum: from 0 to below 1")
    if options.dim < 4 or options.dim % 4:
        parser.error(f"--dim is {options.dim}, must be a multiple of 4, the number of heads")
    if "gloo" not in options.systems:
        parser.error("--systems: gloo must be one of them, as the others are compared with it")
    if options.target is None and options.target_step > options.steps:
        parser.error(f"--target-step {options.target_step} is more than --steps {options.steps}")
    if "diloco-int4-streaming" in options.systems and options.every <= STREAMING["delay"]:
        parser.error(f"--every is {options.every}, must be above the delay of diloco-int4-streaming: 4")
    if TORCHFT in options.systems and (why := why_not_torchft(options.torchft_python)):
        parser.error(why)
    check_outputs(parser, options)
    return options


def why_not_torchft(python: str) -> str:
    """Why that interpreter cannot run torchft; empty when it can."""
    try:
        done = subprocess.run([python, "-c", "import ringdp, torchft"], capture_output=True, text=True, timeout=120)
    except OSError as error:
        return f"--torchft-python {python}: {error.strerror}"
    words = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return f"{TORCHFT} needs --torchft-python with torchft and ringdp: {words[-1]}" if done.returncode else ""


@dataclass(frozen=True)
class Row:
    """Medians over rounds. None: where the target is not reached."""

    rate: float
    rtt_ms: float
    system: str
    seconds: float | None
    x_gloo: float
    at_step: int | None
    step: float
    sent: float
    of_gloo: float
    last_loss: float


def rows_of(rounds: Sequence[Mapping[str, Run]], target: float, rate: float, rtt_ms: float) -> list[Row]:
    """One of each system. gloo is one of them, and sends float32."""
    gloo = [of_round["gloo"] for of_round in rounds]
    rows = []
    for name in rounds[0]:
        runs = [of_round[name] for of_round in rounds]
        times = [run.time_to(target) for run in runs]
        took, sent = median(times), median(run.per_step(run.sent) for run in runs)
        row = Row(
            rate=rate,
            rtt_ms=rtt_ms,
            system=name,
            seconds=took if took < math.inf else None,
            x_gloo=median(_sooner(run.time_to(target), own) for run, own in zip(gloo, times, strict=True)),
            at_step=runs[0].reached(target),
            step=median(run.per_step(run.seconds) for run in runs),
            sent=sent,
            of_gloo=sent / median(run.per_step(run.sent) for run in gloo),
            last_loss=median(run.last_loss for run in runs),
        )
        rows.append(row)
    return rows


def _sooner(other: float, own: float) -> float:
    """How many times as soon as the other; 0 where it is never."""
    return 0.0 if own == math.inf else other / own


def bars_of(rounds: Sequence[Mapping[str, Run]], rows: Sequence[Row], target: float) -> list[Bar]:
    """Of one cell."""
    found = {row.system: row for row in rows}
    where = f"RTT {rows[0].rtt_ms:g} ms:"
    bars = []
    for name, most in SHARES.items():
        if name in found:
            bars.append(Bar(f"{WITHIN * most:.4f} / {name}'s bytes, {where}", WITHIN * most / found[name].of_gloo, 1))
    if rows[0].rate > SLOW:
        return bars
    if "ringdp-int8" in found:
        bars.append(Bar(f"0.35 of gloo's time / ringdp-int8's, {where}", 0.35 * found["ringdp-int8"].x_gloo, 1))
    if {"gloo-powersgd", "ringdp-powersgd"} <= set(found):
        pairs = [(one["gloo-powersgd"].time_to(target), one["ringdp-powersgd"].time_to(target)) for one in rounds]
        sooner = median(_sooner(theirs, ours) for theirs, ours in pairs)
        bars.append(Bar(f"0.9 of gloo-powersgd's time / ringdp-powersgd's, {where}", 0.9 * sooner, 1))
    if "diloco" in found:
        bars.append(Bar(f"gloo's time / diloco's, {where}", found["diloco"].x_gloo, 4))
    return bars


COLUMNS = ("to target", "x gloo", "at step", "step", "sent", "of gloo", "last loss")
HEAD = f"{'rate':>9} {'RTT':>6}  {'system':<22}" + "".join(f"{column:>11}" for column in COLUMNS)


def text_of(rows: Sequence[Row]) -> str:
    """Lines of a table for people, below HEAD."""
    lines = []
    for r in rows:
        took = "-" if r.seconds is None else f"{r.seconds:.1f} s"
        at = "-" if r.at_step is None else str(r.at_step)
        lines.append(
            f"{1e3 * r.rate:>4g} Mb/s {r.rtt_ms:>3g} ms  {r.system:<22}{took:>11}{r.x_gloo:>11.2f}{at:>11}"
            f"{1e3 * r.step:>8.0f} ms{r.sent:>11.0f}{r.of_gloo:>11.4f}{r.last_loss:>11.4f}"
        )
    return "\n".join(lines)


def job_of(options: argparse.Namespace, system: str, steps: int) -> Job:
    """The same for all systems."""
    return Job(
        system=system,
        backend=SYSTEMS[system][0],
        workers=options.hosts,
        steps=steps,
        note=options.note,
        shape={"context": options.context, "dim": options.dim, "layers": options.layers},
        batch=options.batch,
        rate=options.lr,
        warm_up=options.warm_up,
        every=options.every,
        outer_rate=options.outer_lr,
        outer_momentum=options.outer_momentum,
        power=options.power,
        freeze=options.freeze,
    )


def target_of(options: argparse.Namespace) -> float:
    """The loss to be reached: rounded up, as systems add up in other orders."""
    if options.target is not None:
        return float(options.target)
    plain = run_of(run_job("time_to_loss_rank", asdict(job_of(options, ONE_PROCESS, options.target_step)), 1))
    return math.ceil(1e3 * (plain.last_loss + 5e-4)) / 1e3


def round_of(options: argparse.Namespace, number: int, rate: float, rtt_ms: float) -> dict[str, Run]:
    """All systems, one after the other."""
    runs = {}
    for name in random.Random(number).sample(options.systems, len(options.systems)):
        print(f"\rround {number + 1} of {options.rounds}: {name:<22}", end="", file=sys.stderr, flush=True)
        job = asdict(job_of(options, name, options.steps))
        python = options.torchft_python if name == TORCHFT else sys.executable
        reports = run_job(
            "time_to_loss_rank", job, options.hosts, options.hosts, rate, distance=Distance(rtt_ms), python=python
        )
        runs[name] = run_of(reports)
    print(file=sys.stderr)
    return {name: runs[name] for name in options.systems}


def main() -> int:
    """The exit status."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that no rank stays behind
    title = f"time to loss, {options.hosts} hosts, {options.rounds} rounds"
    facts = head(title)
    rows: list[Row] = []
    bars: list[Bar] = []
    curves: dict[str, list[tuple[float, float]]] = {}
    try:
        target = target_of(options)
        print(f"target: a held-out loss of {target:g}\n{HEAD}", flush=True)
        for rate in options.rate:
            for rtt in options.rtt:
                rounds = [round_of(options, number, rate, rtt) for number in range(options.rounds)]
                found = rows_of(rounds, target, rate, rtt)
                print(text_of(found), flush=True)
                rows += found
                bars += bars_of(rounds, found, target)
                for name, run in rounds[0].items():
                    curves[f"{name}, {1e3 * rate:g} Mb/s, {rtt:g} ms"] = run.curve
    except (RuntimeError, ValueError) as problem:
        print(f"time_to_loss: {problem}", file=sys.stderr)
        return 1
    listed = [{**asdict(row), "target": target, "curve": _curve(curves, row)} for row in rows]
    return publish(options, title, facts, listed, bars, Curves(curves, "seconds", "held-out loss, nats per byte"))


def _curve(curves: Mapping[str, Sequence[tuple[float, float]]], row: Row) -> Sequence[tuple[float, float]]:
    return curves[f"{row.system}, {1e3 * row.rate:g} Mb/s, {row.rtt_ms:g} ms"]


if __name__ == "__main__":
    sys.exit(main())
