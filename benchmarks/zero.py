#!/usr/bin/env python3
"""Training steps with shards: ringdp's ZeRO stages against torch's programs of the same memory, in one run.

    python benchmarks/zero.py --ranks 2 --check
    python benchmarks/zero.py --ranks 4 --check
    python benchmarks/zero.py --hosts 2 --rate 1       # two namespaces, a link of 1 Gb/s each (root)

Stage 1 races stock DDP + ZeroRedundancyOptimizer, stages 2 and 3 FSDP2 (fully_shard of every layer) without and with
reshard_after_forward; torch's over gloo, ringdp's over ringdp, all in the same processes, a turn each per round in
another order each round. At stages 1 and 2 ringdp also runs with gathers that outlive the step, at stage 3 with
prefetch off; it says how long it waited for parameters. A step is zero_grad, forward, backward and AdamW; a turn is two
of them, of which the second is timed on its slowest rank: it begins when the first ends, so what that has left on its
way is paid for. Ratios are medians of ratios within a round: torch's time over ringdp's, and gather="step" over
gather="forward". ringdp's trainings must end with equal parameters.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median

from runner.job import run_job
from runner.program import (
    Bar,
    Chart,
    add_outputs,
    add_places,
    by_round,
    check_least,
    check_outputs,
    check_places,
    head,
    over,
    place_of,
    publish,
)
from sharding.stages import PREFETCH_OFF, RIVALS, in_forward, ours

LEAST = {1: 1.5, 3: 2.0}  # stage -> bar; that of stage 1 is for one host: on a slow link both wait for the same bytes


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="1,2,3", help="of 1, 2, 3, separated by commas (default: all)")
    add_places(parser)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--check", action="store_true", help="status 1 when a bar is not held")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per training")
    options = parser.parse_args(arguments)
    options.stages = [int(word) if word in ("1", "2", "3") else word for word in options.stages.split(",")]
    for stage in options.stages:
        if not isinstance(stage, int):
            parser.error(f"--stages has {stage!r}, must be of 1, 2, 3, separated by commas")
    check_places(parser, options)
    check_least(parser, options, rounds=1, layers=1, width=1, rows=1)
    check_outputs(parser, options)
    return options


def main() -> int:
    """The exit status."""
    options = parse()
    names = ("stages", "rounds", "layers", "width", "rows")
    job = {"backend": "ringdp", **{name: getattr(options, name) for name in names}}
    title = f"{options.layers} layers of {options.width} x {options.width}, {options.ranks} ranks, {place_of(options)}"
    facts = head(title)
    try:
        reports = run_job("sharding.training_rank", job, options.ranks, options.hosts, options.rate)
    except (RuntimeError, ValueError) as problem:
        print(f"zero: {problem}", file=sys.stderr)
        return 1
    seconds = by_round(reports, "seconds", max)
    # All ranks wait for the one that computes longest, which is no exposed communication: it waits least itself.
    exposed = {name: median(own) for name, own in by_round(reports, "exposed", min).items()}
    pairs = [(RIVALS[s], ours(s)) for s in options.stages]
    pairs += [(ours(s), in_forward(s)) for s in options.stages if in_forward(s) in seconds]
    ratios = {f"{slow} / {fast}": over(seconds[slow], seconds[fast]) for slow, fast in pairs}
    rows = [{"training": n, "seconds": median(own), "exposed gathers": exposed.get(n)} for n, own in seconds.items()]
    for row in rows:
        waited = row["exposed gathers"]
        note = "" if waited is None else f", of which waiting for parameters {1e3 * waited:.1f} ms"
        print(f"{row['training']:<32}{1e3 * row['seconds']:>8.1f} ms{note}")
    for name, own in ratios.items():
        print(f"{name}: {median(own):.2f} ({min(own):.2f} to {max(own):.2f})")
    equal = len({digest for own in reports for digest in own["hashes"].values()}) == 1
    print(f"parameters of ringdp's trainings: {'equal' if equal else 'DIFFERENT'}, bit for bit")
    barred = [s for s in options.stages if s in LEAST and (s > 1 or options.hosts == 1)]
    named = {s: f"{RIVALS[s]} / {ours(s)}" for s in barred}
    bars = [Bar(name, median(ratios[name]), LEAST[s]) for s, name in named.items()]
    if PREFETCH_OFF in exposed:
        gain = exposed[PREFETCH_OFF] / exposed[ours(3)] if exposed[ours(3)] else float("inf")
        bars.append(Bar("waiting for parameters, prefetch off / on", gain, 1.0))
    chart = Chart({name: 1e3 * median(own) for name, own in seconds.items()}, "ms a step")
    status = publish(options, title, facts, rows, bars, chart)
    return status if equal else 1


if __name__ == "__main__":
    sys.exit(main())
