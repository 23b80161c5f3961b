#!/usr/bin/env python3
"""The optimizer's step alone: AdamW on 20 million float32 parameters, one thread, no other ranks.

    python benchmarks/zero_step.py --check

ringdp is ringdp.ZeroOptimizer in a group of one rank, whose default has the bits of torch's single-tensor step (the
program compares them); `fused` is fused=True of both. All take turns in one run, in another order each round; ratios
are medians of ratios within a round: torch's time over ringdp's. GB/s counts 28 bytes per parameter: parameter,
gradient and two moments read, three of them written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from statistics import median

from runner.program import Bar, Chart, add_outputs, check_least, check_outputs, head, publish

BYTES_PER_PARAMETER = 28
BARS = (("ringdp", "torch", 3.0), ("ringdp", "torch fused", 0.4), ("ringdp fused", "torch fused", 0.95))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=20_000_000)
    parser.add_argument("--tensors", type=int, default=20, help="they are cut into this many")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--check", action="store_true", help="status 1 when a bar is not held")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per optimizer")
    options = parser.parse_args(arguments)
    check_least(parser, options, parameters=1, tensors=1, rounds=1)
    if options.tensors > options.parameters:
        parser.error(f"--tensors is {options.tensors}, more than --parameters {options.parameters}")
    check_outputs(parser, options)
    return options


def ratio(seconds: Mapping[str, Sequence[float]], ours: str, theirs: str) -> float:
    """Median over rounds of their time over ours."""
    return median(their / our for our, their in zip(seconds[ours], seconds[theirs], strict=True))


def main() -> int:
    """The exit status."""
    options = parse()
    from sharding.steps import measure  # imports torch, which takes seconds

    title = f"AdamW step, {options.parameters / 1e6:g} M float32 parameters in {options.tensors} tensors, one thread"
    facts = head(title)
    seconds, same = measure(options.parameters, options.tensors, options.rounds)
    middle = {name: median(own) for name, own in seconds.items()}
    rows = [
        {"optimizer": name, "seconds": took, "GB/s": BYTES_PER_PARAMETER * options.parameters / took / 1e9}
        for name, took in middle.items()
    ]
    print(f"{'AdamW':<14}{'step':>10}{'GB/s':>8}{'torch / it':>12}{'fused / it':>12}")
    for row in rows:
        name = row["optimizer"]
        against = "".join(f"{ratio(seconds, name, theirs):>12.2f}" for theirs in ("torch", "torch fused"))
        print(f"{name:<14}{1e3 * row['seconds']:>7.1f} ms{row['GB/s']:>8.1f}{against}")
    print(f"ringdp's parameters after {options.rounds} rounds: {'equal to' if same else 'DIFFER FROM'} torch's bits")
    bars = [Bar(f"{theirs} / {ours}", ratio(seconds, ours, theirs), least) for ours, theirs, least in BARS]
    status = publish(options, title, facts, rows, bars, Chart({n: 1e3 * s for n, s in middle.items()}, "ms a step"))
    return status if same else 1


if __name__ == "__main__":
    sys.exit(main())
