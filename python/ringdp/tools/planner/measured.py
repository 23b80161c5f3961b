"""Questions that are answered by measuring this machine: calibrate, check, predict, and the largest micro-batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringdp.text.units import counted
from ringdp.tools.planner.coding import NAMES
from ringdp.tools.planner.memory import STAGES
from ringdp.tools.planner.presets import device_gigabytes
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind, Table
from ringdp.tools.planner.units import bandwidth, one_of, several_of, whole, wholes


@dataclass(frozen=True)
class Found:
    """The largest micro-batch with what it needs, and the next one tried, which does not fit; bytes.

    0 samples: not even one fits. `too_large` is None when as many as may be tried fit.
    """

    samples: int
    needed: float
    too_large: int | None
    tried: tuple[tuple[int, float], ...]


def largest(needed: Callable[[int], float], room: float, most: int) -> Found:
    """needed(samples): bytes that a rank holds, which must not fall as samples grow. most: samples to try."""
    tried: dict[int, float] = {}

    def fits(samples: int) -> bool:
        tried[samples] = needed(samples)
        return tried[samples] <= room

    below, above = 0, 1
    while below < most and fits(above):
        below, above = above, min(2 * above, most)
    beyond = above if below < most else None
    while beyond is not None and beyond - below > 1:
        middle = (below + beyond) // 2
        below, beyond = (middle, beyond) if fits(middle) else (below, middle)
    return Found(below, tried.get(below, 0.0), beyond, tuple(tried.items()))


if TYPE_CHECKING:
    from ringdp.tools.planner.calibration import Calibration
    from ringdp.tools.planner.local_ranks import ProbeJob

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
    from ringdp.tools.planner import workload
    from ringdp.tools.planner.local_ranks import ProbeJob

    workload.load(model)  # refused here, not by every rank
    return ProbeJob(model, micro_batch, steps, sizes, alone=alone)


def _reports(job: ProbeJob, ranks: int) -> list[dict[str, Any]]:
    from ringdp.tools.planner.local_ranks import MeasurementFailed, run_probe

    try:
        return run_probe(job, ranks)
    except MeasurementFailed as error:
        raise InputError(f"measured nothing: {error}") from None


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def measured_here(model: str, micro_batch: int, ranks: int, steps: int) -> Calibration:
    """On `ranks` ranks of this machine, over shared memory."""
    from ringdp.tools.planner.prediction import calibrated

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


_CODED = (
    ("ranks", "ranks"), ("compress", ""), ("sent", "share"), ("codes", "s"), ("communication", "s"), ("exposed", "s"),
    ("step", "s"), ("of the step without", ""),
)  # fmt: skip


def _coded(found: Calibration, compress: tuple[str, ...], ranks: tuple[int, ...], bandwidth: float | None) -> Table:
    """Each method for each number of ranks above 1, with codes as fast as they are here."""
    from ringdp.tools.planner.coding import measured
    from ringdp.tools.planner.prediction import predict as predicted

    rows = []
    elements = sum(found.buckets) / 4
    for n in (n for n in ranks if n > 1):
        without = predicted(found, n, bandwidth).step
        for name in compress:
            coding = measured(name, n)
            p = predicted(found, n, bandwidth, coding)
            codes = coding.seconds * elements
            rows.append((n, name, coding.share, codes, p.communication, p.exposed, p.step, p.step / without))
    return Table("DistributedDataParallel(compress=...)", _CODED, tuple(rows))


def predict(
    calibration: Path, ranks: tuple[int, ...], bandwidth: float | None, compress: tuple[str, ...] | None
) -> Answer:
    """Step time and memory of other numbers of ranks on the machine that was measured."""
    from ringdp.tools.planner import calibration as kept
    from ringdp.tools.planner.prediction import memory
    from ringdp.tools.planner.prediction import predict as predicted

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
    title = f"{found.workload}, micro-batch {found.micro_batch}, calibrated on {counted(found.ranks, 'rank')}"
    tables = [Table(title, _PREDICTED, tuple(rows)), Table("memory by ZeRO stage", _BY_STAGE, tuple(held))]
    if compress is not None:
        coded = _coded(found, compress, ranks, bandwidth)
        tables.append(coded)
        figures += [Figure(f"step_{n}_{name}", step, "s", "played likewise") for n, name, *_, step, _ in coded.rows]
    return Answer(tuple(figures), tuple(tables))


def check(
    model: str,
    micro_batch: int,
    ranks: tuple[int, ...],
    steps: int,
    calibration: Path | None,
    compress: tuple[str, ...] | None,
) -> Answer:
    """Predicts first, then runs some steps, of one rank too: predicted and measured side by side."""
    from ringdp.tools.planner import calibration as kept
    from ringdp.tools.planner.calibration import slowest
    from ringdp.tools.planner.prediction import predict as predicted

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
    tables = [Table("predicted and measured", columns, tuple(rows))]
    if compress is not None:
        without = {row[0]: row[2] for row in rows}
        coded = []
        for n, name, share, _, _, _, step, of_without in _coded(found, compress, ranks, None).rows:
            reports = _reports(replace(job, compress=name), n)
            took, sent = slowest(reports, "step"), reports[0]["sent"]
            coded.append((n, name, share, sent, step, took, took / step, of_without, took / without[n]))
            figures.append(Figure(f"step_{n}_{name}_ratio", took / step, "", "measured / predicted"))
        tables.append(Table("with compress, predicted and measured", _CODED_AND_MEASURED, tuple(coded)))
    return Answer(tuple(figures), tuple(tables))


_CODED_AND_MEASURED = (
    ("ranks", "ranks"), ("compress", ""), ("sent, predicted", "share"), ("in the ledger", "share"),
    ("step predicted", "s"), ("measured", "s"), ("ratio", ""), ("of the step without, predicted", ""), ("measured", ""),
)  # fmt: skip


def micro_batch(model: str, device_gb: float, ranks: int, stage: int, measured: str, most: int) -> Answer:
    """The largest micro-batch whose pass fits together with parameters, gradients and state."""
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
    """A function of samples: what a rank held beyond a process that has trained almost nothing."""

    def needed(samples: int) -> float:
        (report,) = _reports(_job(model, samples, 1, (), alone=False), 1)
        return report["peak"] - report["base"]

    return needed


def _counted_bytes(model: str, ranks: int, stage: int) -> Callable[[int], float]:
    """A function of samples: what a rank would hold at that stage, whatever the device's size."""
    from ringdp.tools.planner import workload
    from ringdp.tools.planner.fake_memory import pass_memory
    from ringdp.tools.planner.preflight import preflight

    chosen = workload.load(model)
    made, anything = chosen.model(), 1e30
    known = {"ranks": ranks, "stage": stage, "device_bytes": anything, "activation_bytes": 0.0}
    around = preflight(made, chosen.optimizer, None, **known).by_stage[stage].total
    return lambda samples: around + pass_memory(made, chosen.batch(samples), chosen.loss).peak


_MODEL = Input("model", str, "gpt, mlp, or module:function that returns a ringdp.Workload", "gpt")
_SAMPLES = Input("micro_batch", whole, "samples per rank and step", _MICRO_BATCH)
_STEP_COUNT = Input("steps", whole, "steps to measure", _STEPS)
_FILE = "file of a calibration"
_COMPRESS = Input("compress", several_of(*NAMES), f"also with codes: {', '.join(NAMES)}; several with commas", "")

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
            _COMPRESS,
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
            _COMPRESS,
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
