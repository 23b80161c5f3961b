"""The experiment plan: what runs, in which order, and for how long at most. From what needs least to what needs all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .report import SPEED
from .runner import MOST_BAD, Part

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 470.0  # of all parts together: less than eight minutes with the ends of those that hang
HANG_S = 15.0  # of one test
# A rank that hangs is told of, and its world ended, before the test is ended for it.
RANKS_SHARE = 0.8
CONTEXT_S = 3.0  # for each rank of a new world: contexts of one GPU are made one after another

# name, file of tests/device/gpu, what is shown, seconds, further options of pytest
TESTS: tuple[tuple[str, str, str, float, tuple[str, ...]], ...] = (
    ("plans", "test_plans", "kernels of one process that wait for each other (SPIN)", 45, ("-k", "not STREAM")),
    ("plans-stream", "test_plans", "waits as operations of streams, one process (STREAM)", 25, ("-k", "STREAM")),
    ("processes", "test_plan_processes", "STREAM between processes that map each other's memory", 60, ()),
    ("graphs", "test_plan_graphs", "plans in CUDA graphs", 25, ()),
    ("plan-faults", "test_plan_faults", "a rank that does not come", 30, ()),
    ("streams", "test_streams", "the order of streams, and graphs of calls", 40, ()),
    ("collectives", "test_collectives", "torch.distributed's calls on CUDA tensors", 90, ()),
    ("pieces", "test_pieces", "the same on tensors that do not fit into half a window", 45, ()),
    ("training", "test_training", "DDP and ZeRO against one process", 60, ()),
    ("faults", "test_faults", "ranks that are killed or stopped", 60, ()),
    ("several-gpus", "test_several_gpus", "ranks with a GPU each, and NCCL between them", 120, ()),
)
# Where kernels of one process wait for each other, one that had to be loaded meanwhile would wait for them.
ONE_PROCESS = ("test_plans", "test_plan_graphs", "test_plan_faults")
EAGER = {"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}  # nor may their streams share a queue


def environment(hang_s: float) -> dict[str, str]:
    """Of every part."""
    paths = [str(ROOT / folder) for folder in ("python", "tests", "benchmarks")]
    return {
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "CUDA_DEVICE_MAX_CONNECTIONS": "8",  # with 32 an H100 needs over 36 s for the contexts of 8 ranks, so 4 s
        "HANG_S": str(hang_s),
        "RANKS_LIMIT_S": str(RANKS_SHARE * hang_s),
        "RANKS_CONTEXT_S": str(CONTEXT_S),
    }


def pytest_command(python: str, *arguments: str) -> list[str]:
    """pytest with every test as a finding."""
    plugins = ["-p", "gpu_check.recorder", "-p", "no:faulthandler", "-p", "no:cacheprovider"]
    return [python, "-m", "pytest", "-v", "--tb=short", f"--maxfail={MOST_BAD}", *plugins, *arguments]


def parts(python: str, assignments: Sequence[str], out: Path, hang_s: float = HANG_S) -> list[Part]:
    """All of them. `assignments`: variables for `make build`."""
    common, built = environment(hang_s), ("build",)
    make = ["make", "--no-print-directory", "build", *assignments]
    rows = out / SPEED
    files = ["--json", str(rows), "--plot", str(rows.with_suffix(".png"))]
    speed = [python, "benchmarks/gpu.py", "--seconds", "80", *files]
    suite = [python, "-m", "tests.conformance", "--device", "cuda", "--json", "--timeout", "20"]
    interface = pytest_command(python, "tests/device/python", "-k", "not emulated")

    def module(name: str) -> list[str]:
        return [python, "-m", f"devices.{name}"]

    def sanitizer(tool: str, what: str, name: str) -> Part:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *module("small_world")]
        return Part(name, what, command, 45, built, common, program=command[0])

    return [
        Part("device", "what nvidia-smi says", ["nvidia-smi"], 10, program="nvidia-smi"),
        Part("probe", "the driver, without a build of ringdp", module("probe"), 60, variables=common),
        Part("ladder", "microseconds of single operations, likewise", module("ladder"), 30, variables=common),
        Part("build", "the extension and its CUDA part", make, 200, variables={"RINGDP_CUDA": "on"}),
        Part("facts", "registers, SASS, copies, describe()", module("facts"), 50, built, common),
        Part("interface", "the C interface", interface, 40, built, common, again=True),
        Part("spin", "a late rank, a full device", module("spin"), 45, built, {**common, **EAGER}),
        *(
            Part(
                name,
                what,
                pytest_command(python, f"tests/device/gpu/{file}.py", *options),
                limit_s,
                built,
                {**common, **(EAGER if file in ONE_PROCESS else {})},
                again=True,
            )
            for name, file, what, limit_s, options in TESTS
        ),
        sanitizer("memcheck", "memory errors of kernels", "sanitizer"),
        sanitizer("racecheck", "races of a block's threads in shared memory", "racecheck"),
        sanitizer("synccheck", "barriers that not all threads of a block come to", "synccheck"),
        Part("conformance", "torch's own tests", suite, 60, built, common, module="expecttest"),
        Part("loading", "kernels as built, and from PTX", module("loading"), 60, built, common),
        Part("speed", "against NCCL and torch's symmetric memory", speed, 110, built, common, output=rows),
    ]


def chosen(plan: Sequence[Part], names: Sequence[str]) -> list[Part]:
    """The parts with these names, and before them what they need. ValueError names one that there is not."""
    known = {part.name: part for part in plan}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"invalid part '{unknown[0]}' (expected some of: {', '.join(known)})")
    wanted = {*names, *(need for name in names for need in known[name].needs)}
    return [part for part in plan if part.name in wanted]
