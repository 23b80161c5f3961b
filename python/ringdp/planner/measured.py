"""Questions that this machine is asked: calibrate, check, predict, and the largest micro-batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringdp.planner.answer import Answer, Figure, Table
from ringdp.planner.kind import Input, InputError, Kind
from ringdp.planner.memory import STAGES
from ringdp.planner.presets import device_gigabytes
from ringdp.planner.units import bandwidth, one_of, whole, wholes

if TYPE_CHECKING:
    from ringdp.planner.calibration import Calibration
    from ringdp.planner.probe_job import ProbeJob

# Small enough for 20 seconds on a laptop; the largest is beyond any cache's share of a rank.
_SIZES = (4 << 10, 256 << 10, 4 << 20, 16 << 20)
_MICRO_BATCH, _STEPS = "8", "6"
_UNITS = {
    "s": ("forward", "backward", "optimizer", "alpha", "step", "overhead"),
    "bytes": ("parameters", "gradients", "state", "saved", "batch", "two_units", "base", "peak"),
    "s/byte": ("seconds_per_byte",),
    "share": ("cpu_per_second",),
    "samples": ("micro_batch",),
}


def _job(model: str, micro_batch: int, steps: int, sizes: tuple[int, ...], alone: bool) -> ProbeJob:
    from ringdp.planner import workload
    from ringdp.planner.probe_job import ProbeJob

    workload.load(model)  # refused here, not by every rank
    return ProbeJob(model, micro_batch, steps, sizes, alone=alone)


def _reports(job: ProbeJob, ranks: int) -> list[dict[str, Any]]:
    from ringdp.planner.local_ranks import MeasurementFailed, run_probe

    try:
        return run_probe(job, ranks)
    except MeasurementFailed as error:
        raise InputError(f"measured nothing: {error}") from None


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def measured_here(model: str, micro_batch: int, ranks: int, steps: int) -> Calibration:
    """On `ranks` ranks of this machine, over shared memory."""
    from ringdp.planner.prediction import calibrated

    if ranks < 2:
        raise InputError("--ranks 1: calibrating needs at least 2 ranks, which communicate")
    job = _job(model, micro_batch, steps, _SIZES, alone=True)
    return calibrated(_reports(job, ranks), job, cores(), None)


def calibrate(model: str, micro_batch: int, ranks: int, steps: int, calibration: Path | None) -> Answer:
    """Compute alone, latency and bandwidth of an all-reduce, memory."""
    found = measured_here(model, micro_batch, ranks, steps)
    if calibration is not None:
        found.save(calibration)
    units = {name: unit for unit, names in _UNITS.items() for name in names}
    lists = ("buckets", "ready")
    figures = [Figure(n, v, units.get(n, ""), "") for n, v in asdict(found).items() if n not in lists]
    bucket = found.suggested_bucket_bytes
    figures += [
        Figure("counted", found.counted, "bytes", "parameters + gradients + state + saved + batch"),
        Figure("other", found.other, "bytes", "peak - base - counted: what predictions leave out"),
        Figure("suggested_bucket_bytes", bucket, "bytes", "sqrt(gradients alpha / seconds per byte)"),
        Figure("samples_per_second", found.samples_per_second, "samples/s", "of one rank, computing alone"),
    ]
    rows = tuple(zip(found.buckets, found.ready, strict=True))
    table = Table("buckets", (("size", "bytes"), ("ready after this share of backward", "share")), rows)
    kept = f"written to {calibration}" if calibration is not None else "keep it by --calibration FILE"
    return Answer(tuple(figures), (table,), (kept,))


_PREDICTED = (
    ("ranks", "ranks"), ("compute", "s"), ("communication", "s"), ("exposed", "s"), ("step", "s"),
    ("efficiency", "share"), ("memory", "bytes"),
)  # fmt: skip
_BY_STAGE = (("ranks", "ranks"), *((f"stage {stage}", "bytes") for stage in STAGES))


def predict(calibration: Path, ranks: tuple[int, ...], bandwidth: float | None) -> Answer:
    """Step time and memory of other numbers of ranks on the machine that was measured."""
    from ringdp.planner import calibration as kept
    from ringdp.planner.prediction import memory
    from ringdp.planner.prediction import predict as predicted

    found = kept.load(calibration)
    if bandwidth is not None and found.bandwidth is None:
        raise InputError(
            "--bandwidth: this calibration is of ranks that share memory; one of links is what"
            " `python benchmarks/planner.py --calibration FILE` writes"
        )
    rows, figures, held = [], [], []
    for n in ranks:
        p = predicted(found, n, bandwidth)
        rows.append((n, p.compute, p.communication, p.exposed, p.step, p.efficiency, p.memory))
        figures.append(Figure(f"step_{n}", p.step, "s", "played bucket by bucket"))
        figures.append(Figure(f"memory_{n}", p.memory, "bytes", "base + counted"))
        held.append((n, *(memory(found, n, stage) for stage in STAGES)))
    title = f"{found.workload}, micro-batch {found.micro_batch}, calibrated on {found.ranks} ranks"
    by_stage = Table("memory by ZeRO stage", _BY_STAGE, tuple(held))
    return Answer(tuple(figures), (Table(title, _PREDICTED, tuple(rows)), by_stage))


def check(model: str, micro_batch: int, ranks: tuple[int, ...], steps: int, calibration: Path | None) -> Answer:
    """Predicts first, then runs some steps, of one rank too: predicted beside measured."""
    from ringdp.planner import calibration as kept
    from ringdp.planner.calibration import slowest
    from ringdp.planner.prediction import predict as predicted

    found = measured_here(model, micro_batch, 2, steps) if calibration is None else kept.load(calibration)
    if (found.workload, found.micro_batch) != (model, micro_batch):
        was = f"--model {found.workload} --micro-batch {found.micro_batch}"
        raise InputError(f"--calibration {calibration}: is of {was}: give the same, or measure again")
    predictions = [predicted(found, n) for n in ranks]
    job = _job(model, micro_batch, steps, (), alone=False)
    of_one = _reports(job, 1)
    alone = slowest(of_one, "step")
    rows, figures = [], []
    for p in predictions:
        reports = _reports(job, p.ranks) if p.ranks > 1 else of_one
        step, memory = slowest(reports, "step"), max(report["peak"] for report in reports)
        ratios = (step / p.step, memory / p.memory)
        rows.append((p.ranks, p.step, step, ratios[0], p.efficiency, alone / step, p.memory, memory, ratios[1]))
        named = zip(("step", "memory"), ratios, strict=True)
        figures.append(Figure(f"efficiency_{p.ranks}", alone / step, "share", "step of 1 rank / step, both measured"))
        figures += [Figure(f"{name}_{p.ranks}_ratio", ratio, "", "measured / predicted") for name, ratio in named]
    columns = (
        ("ranks", "ranks"), ("step predicted", "s"), ("measured", "s"), ("ratio", ""),
        ("efficiency predicted", "share"), ("measured", "share"),
        ("memory predicted", "bytes"), ("measured", "bytes"), ("ratio", ""),
    )  # fmt: skip
    return Answer(tuple(figures), (Table("predicted beside measured", columns, tuple(rows)),))


def micro_batch(model: str, device_gb: float, ranks: int, stage: int, measured: str, most: int) -> Answer:
    """The largest micro-batch whose pass fits beside parameters, gradients and state."""
    from ringdp.planner.micro_batch import largest

    if measured == "yes" and (ranks, stage) != (1, 0):
        raise InputError("--measured yes runs one rank at stage 0: leave --ranks and --stage out")
    needed = _run_bytes(model) if measured == "yes" else _counted_bytes(model, ranks, stage)
    found = largest(needed, device_gb * 1e9, most)
    figures = (
        Figure("micro_batch", found.samples, "samples", "the largest that fits"),
        Figure("needed_bytes", found.needed, "bytes", "measured" if measured == "yes" else "counted"),
        Figure("first_too_large", found.too_large, "samples", f"none: {most} fit" if found.too_large is None else ""),
    )
    table = Table("tried", (("samples", ""), ("needed", "bytes")), tuple(sorted(found.tried)))
    none = ("not even one sample fits: a higher --stage, more --ranks, or recomputation",)
    return Answer(figures, (table,), () if found.samples else none)


def _run_bytes(model: str) -> Callable[[int], float]:
    """By samples: what a rank held beyond a process that has trained almost nothing."""

    def needed(samples: int) -> float:
        (report,) = _reports(_job(model, samples, 1, (), alone=False), 1)
        return report["peak"] - report["base"]

    return needed


def _counted_bytes(model: str, ranks: int, stage: int) -> Callable[[int], float]:
    """By samples: what a rank would hold at that stage, for any size of device."""
    from ringdp.planner import workload
    from ringdp.planner.fake_memory import pass_memory
    from ringdp.planner.preflight import preflight

    chosen = workload.load(model)
    made, anything = chosen.model(), 1e30
    known = {"ranks": ranks, "stage": stage, "device_bytes": anything, "activation_bytes": 0.0}
    around = preflight(made, chosen.optimizer, None, **known).by_stage[stage].total
    return lambda samples: around + pass_memory(made, chosen.batch(samples), chosen.loss).peak


_MODEL = Input("model", str, "gpt, mlp, or module:function that returns a ringdp.Workload", "gpt")
_SAMPLES = Input("micro_batch", whole, "samples per rank and step", _MICRO_BATCH)
_STEP_COUNT = Input("steps", whole, "steps to measure", _STEPS)
_FILE = "file of a calibration"

KINDS = (
    Kind(
        "calibrate",
        "measure this machine: compute, all-reduce, memory (under 20 s)",
        (
            _MODEL,
            _SAMPLES,
            Input("ranks", whole, "local ranks", "2"),
            _STEP_COUNT,
            Input("calibration", Path, f"{_FILE} to write", ""),
        ),
        calibrate,
        "calibrate --model gpt --calibration here.json",
    ),
    Kind(
        "predict",
        "step time and memory on other numbers of ranks, from a calibration",
        (
            Input("calibration", Path, _FILE),
            Input("ranks", wholes, "numbers of ranks, as 2,4,8", "2,4,8"),
            Input("bandwidth", bandwidth, "of a rank's link, of calibrations between hosts", ""),
        ),
        predict,
        "predict --calibration here.json --ranks 2,4,8",
    ),
    Kind(
        "check",
        "predict, run some steps, show both",
        (
            _MODEL,
            _SAMPLES,
            Input("ranks", wholes, "numbers of local ranks, as 2,4", "2,4"),
            _STEP_COUNT,
            Input("calibration", Path, f"{_FILE}; without one it is measured first", ""),
        ),
        check,
        "check --model mlp --ranks 2,4",
    ),
    Kind(
        "find-micro-batch",
        "the largest micro-batch that fits a device",
        (
            _MODEL,
            Input("device_gb", device_gigabytes, "memory of a device, as 80GB or h100"),
            Input("ranks", whole, "data-parallel ranks", "1"),
            Input("stage", lambda text: int(one_of("0", "1", "2", "3")(text)), "ZeRO stage", "0"),
            Input("measured", one_of("no", "yes"), "run it here instead of counting", "no"),
            Input("most", whole, "samples to try at most", "65536"),
        ),
        micro_batch,
        "find-micro-batch --model gpt --device-gb 1",
    ),
)
