#!/usr/bin/env python3
"""Which all_reduce algorithm would be the fastest on many hosts, and from which size on?

    python benchmarks/scale_model.py --calibrate                 # measure this machine first; needs root
    python benchmarks/scale_model.py --json s.json --plot s.png
    python benchmarks/scale_model.py --hosts 64,2048 --local 8   # several ranks per host
    python benchmarks/scale_model.py --alpha-us 15 --gbit 100    # a network given by hand

Formulas (scale/costs.py) are evaluated up to 16,384 ranks. Beside them, where there is SimGrid, the plans that ringdp
makes for so many ranks are recorded and played on a simulated cluster (scale/simulate.py), and the deviation of the
formula is printed; what has too many steps to be played is named. Nothing above two hosts is measured: this is a model,
and says where to look. Its switch carries every host at full speed and a connection costs nothing, which favours
`direct`: on an oversubscribed network, or where N-1 connections per rank are too many, read the other curves.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runner import machine
from runner.cell import parse_size, size_name
from runner.program import add_outputs, check_outputs, picture, write
from scale.calibrate import calibrate
from scale.compare import Comparison, compare, simulator
from scale.costs import ALGORITHMS, MARGIN, Network, Topology, candidates, grid, load_network, reigns, save_network

ROOT = Path(__file__).resolve().parent.parent
CALIBRATION = ROOT / "benchmarks/results/calibration.json"
SMALLEST, LARGEST = 256, 1 << 30
HOSTS = "2,4,16,64,256,1024,4096,16384"


def numbers(text: str) -> list[int]:
    """Comma-separated numbers of hosts."""
    found = [int(part) for part in text.split(",")]
    if not all(2 <= n <= 16384 for n in found):
        raise argparse.ArgumentTypeError(f"{text!r}: 2 to 16384 hosts")
    return found


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=numbers, default=numbers(HOSTS), help=f"default {HOSTS}")
    parser.add_argument("--local", type=int, default=1, help="ranks per host (default 1)")
    parser.add_argument("--calibration", type=Path, default=CALIBRATION, help="file with the network's constants")
    parser.add_argument("--calibrate", action="store_true", help="measure them and write that file; needs root")
    parser.add_argument("--rate", type=float, default=1.0, help="with --calibrate: Gb/s of the links (default 1)")
    parser.add_argument("--seconds", type=float, default=3.0, help="with --calibrate: per measurement (default 3)")
    parser.add_argument("--alpha-us", type=float, help="instead of the file's alpha")
    parser.add_argument("--gbit", type=float, help="instead of the file's 1/beta")
    parser.add_argument("--simulate-up-to", type=int, default=64, metavar="RANKS", help="default 64; 0: no simulation")
    parser.add_argument("--simulate-sizes", default="4KiB,1MiB,16MiB", help="default 4KiB,1MiB,16MiB")
    parser.add_argument("--peers-folder", type=Path, default=ROOT / ".peers", help="where peers.py has put SimGrid")
    add_outputs(parser, "curves, reigns and comparisons", "time by size")
    found = parser.parse_args()
    check_outputs(parser, found)
    if not 1 <= found.local <= 64:
        parser.error(f"--local {found.local}: 1 to 64 ranks per host")
    return found


def network_of(found: argparse.Namespace) -> Network:
    """From the file or measured now, with what was given by hand in its place."""
    if found.calibrate:
        save_network(calibrate(found.rate, found.seconds, machine.sentence(machine.describe())), found.calibration)
    network = load_network(found.calibration)
    changes: dict[str, Any] = {}
    if found.alpha_us is not None:
        changes["alpha"] = found.alpha_us * 1e-6
    if found.gbit is not None:
        changes["beta"] = 8e-9 / found.gbit
    if changes:
        words = ", ".join(f"{name} given by hand" for name in changes)
        network = replace(network, **changes, origin=f"{network.origin}; {words}")
    return network


def curves(at: Topology, network: Network) -> dict[str, Any]:
    """Times by size of every algorithm that differs here."""
    sizes = grid(SMALLEST, LARGEST)
    chosen = candidates(at)
    times = {name: [cost(size, at, network) for size in sizes] for name, cost in chosen.items()}
    return {"hosts": at.hosts, "local": at.local, "sizes": sizes, "seconds": times}


def print_reigns(at: Topology, network: Network) -> dict[str, Any]:
    """Which algorithm is the fastest in which range of sizes, among all and among those that keep rank order."""
    row: dict[str, Any] = {"hosts": at.hosts, "local": at.local}
    for title, in_order in (("any", False), ("rank order", True)):
        found = reigns(SMALLEST, LARGEST, at, network, candidates(at, in_order))
        row[title] = [reign._asdict() for reign in found]
        text = ", ".join(f"{r.algorithm} to {size_of(r.end)}" for r in found[:-1])
        print(f"{at.ranks:>6} {title:<10} {text + ', then ' if text else ''}{found[-1].algorithm}", flush=True)
    return row


def size_of(nbytes: int) -> str:
    """Rounded for people: "37 KiB"."""
    shift = 20 if nbytes >= 1 << 20 else 10 if nbytes >= 1 << 10 else 0
    return size_name(max(1, round(nbytes / (1 << shift))) << shift)


def simulations(found: argparse.Namespace, network: Network) -> tuple[list[Comparison], str]:
    """Formula and simulation for the smaller numbers of hosts; the reason why simulations are missing."""
    python, reason = simulator(found.peers_folder)
    if reason or not found.simulate_up_to:
        return [], reason or "not asked for"
    print(f"{'ranks':>6} {'size':>8} {'algorithm':<13} {'formula ms':>11} {'SimGrid ms':>11} {'deviation':>9}")
    done, skipped = [], []
    for at in (Topology(hosts, found.local) for hosts in found.hosts if hosts * found.local <= found.simulate_up_to):
        for size in (parse_size(text) for text in found.simulate_sizes.split(",")):
            for name in candidates(at):
                one = compare(python, name, ALGORITHMS[name], size, at, network)
                if isinstance(one, str):
                    skipped.append(f"{name}, {at.ranks} ranks, {size_name(size)}: {one}")
                    continue
                done.append(one)
                times = f"{1e3 * one.formula:>11.3f} {1e3 * one.simulation:>11.3f} {100 * one.deviation:>8.0f}%"
                print(f"{at.ranks:>6} {size_name(size):>8} {name:<13} {times}", flush=True)
    return done, "; ".join(skipped)


def main() -> int:
    """Prints constants, reigns and deviations; 1 when there is no calibration or a simulation fails."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that no simulation stays behind
    found = options()
    try:
        network = network_of(found)
        values = ", ".join(f"{name} {value:.3g}" for name, value in asdict(network).items() if name != "origin")
        print(f"# seconds: {values}\n# {network.origin}")
        span = f"{size_of(SMALLEST)} to {size_of(LARGEST)}"
        print(f"# ranks, among which, the fastest all_reduce from {span} (until another is {MARGIN:.0%} faster)")
        places = [Topology(hosts, found.local) for hosts in found.hosts]
        result: dict[str, Any] = {"command": shlex.join(["python", *sys.argv]), "network": asdict(network)}
        result["reigns"] = [print_reigns(at, network) for at in places]
        result["curves"] = [curves(at, network) for at in places]
        compared, reason = simulations(found, network)
    except (ValueError, RuntimeError) as error:
        print(f"scale_model: {error}", file=sys.stderr)
        return 1
    result["comparisons"] = [{**asdict(one), "deviation": one.deviation} for one in compared]
    result["not_simulated"] = reason
    if reason:
        print(f"# not simulated: {reason}")
    write(found, result)
    if found.plot:
        draw(result, found.plot)
    return 0


COLORS = {"direct": "#1f4e8c", "ring": "#0a9396", "ring/rotated": "#7f7f7f", "tree": "#bb3e03", "server": "#b8860b"}
COLORS |= {"hierarchy": "#6a4c93", "exchange": "#e76f51"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the PNG."""
    panels = result["curves"]
    columns = min(4, len(panels))
    lines = -(-len(panels) // columns)
    shape = {"figsize": (4.2 * columns + 1.6, 3.4 * lines + 0.6), "squeeze": False}
    with picture(path, lines, columns, **shape) as (figure, axes):
        for place in axes.flat[len(panels) :]:
            place.set_visible(False)
        for place, panel in zip(axes.flat, panels, strict=False):
            for name, times in panel["seconds"].items():
                place.plot(panel["sizes"], [1e3 * t for t in times], label=name, color=COLORS[name], linewidth=1.5)
            for dot in result["comparisons"]:
                if (dot["hosts"], dot["local"]) == (panel["hosts"], panel["local"]):
                    place.plot(dot["size"], 1e3 * dot["simulation"], "o", color=COLORS[dot["algorithm"]], markersize=4)
            ranks = f"{panel['hosts'] * panel['local']} ranks"
            place.set_title(ranks if panel["local"] == 1 else f"{ranks}, {panel['local']} per host")
            place.set_xscale("log", base=2)
            place.set_xlabel("bytes per rank")
            place.set_yscale("log")
            place.grid(True, color="#dddddd", linewidth=0.6)
            place.spines[["top", "right"]].set_visible(False)
        for row in axes:
            row[0].set_ylabel("all_reduce, ms")
        handles, labels = max((place.get_legend_handles_labels() for place in axes.flat), key=lambda both: len(both[1]))
        figure.legend(handles, labels, loc="outside right upper", frameon=False)
        figure.suptitle("lines: formula; dots: SimGrid on the recorded plans", x=0.02, ha="left", fontsize=10)


if __name__ == "__main__":
    sys.exit(main())
