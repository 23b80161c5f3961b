#!/usr/bin/env python3
"""What bucketing and overlap are worth: the same training step in four modes, alternating in one run.

    python benchmarks/ablation.py                          # 2 ranks of this host, shared memory
    python benchmarks/ablation.py --hosts 2 --rate 1       # two namespaces, a link of 1 Gb/s each (root)

naive: one blocking all_reduce per named gradient after the backward pass. overlap per parameter: the same, each as soon
as its gradient is there. bucketed: blocking, in buckets. bucketed + overlap: the default. alone: no communication.
Times are medians over rounds, of the rank that computed longest. communication: while a collective was on its way;
exposed: the part of it during which nothing was left to compute. Where the backward pass is long enough for the other
buckets, bucketed + overlap exposes its last bucket only.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict

from modes.rank import Job
from modes.table import rows_of, text_of, verdict
from race import machine
from race.arguments import add_places, check_least, check_places
from race.job import run_job
from race.outputs import add_outputs, check_outputs


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_places(parser)
    parser.add_argument("--backend", default="ringdp")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1024, help="samples per rank and step")
    parser.add_argument("--bucket-mb", type=float, default=2.0)
    parser.add_argument("--check", action="store_true", help="status 1 when more than the last bucket is exposed")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per mode")
    options = parser.parse_args(arguments)
    check_places(parser, options)
    check_least(parser, options, rounds=1, layers=1, width=1, rows=1)
    check_outputs(parser, options)
    return options


def main() -> int:
    """The exit status."""
    options = parse()
    job = Job(options.backend, options.rounds, options.layers, options.width, options.rows, options.bucket_mb)
    facts = machine.describe()
    try:
        everyones = run_job("modes.rank", asdict(job), options.ranks, options.hosts, options.rate)
    except (RuntimeError, ValueError) as problem:
        print(f"ablation: {problem}", file=sys.stderr)
        return 1
    rows = rows_of(everyones)
    link = f"{options.hosts} hosts at {options.rate:g} Gb/s" if options.hosts > 1 else "one host"
    title = f"{everyones[0]['parameters'] / 1e6:.2f} M parameters, {options.ranks} ranks over {options.backend}, {link}"
    print(f"{title}, {options.rounds} rounds")
    print(machine.sentence(facts))
    print(text_of(rows))
    within, sentence = verdict(rows)
    print(sentence)
    result = {
        "command": shlex.join(["python", *sys.argv]),
        "title": title,
        "machine": facts,
        "job": asdict(job),
        "rows": [asdict(row) for row in rows],
        "verdict": sentence,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        from modes.plot import draw

        draw(result, options.plot)
    return int(options.check and not within)


if __name__ == "__main__":
    sys.exit(main())
