"""The guided overview: the questions in the order in which they come up, for one model on one cluster."""

from __future__ import annotations

from ringdp.text.units import byte_size, counted
from ringdp.tools.planner import presets
from ringdp.tools.planner.batch import batch, lr
from ringdp.tools.planner.memory import STAGES, fit_room, memory, widths
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind
from ringdp.tools.planner.scaling import BANDWIDTH, MFU, efficiency, global_tokens_of, regime, step, wall
from ringdp.tools.planner.traffic import WIRE
from ringdp.tools.planner.units import amount, count, whole

_ASSUMED = "llama-70b"


def overview(
    model: presets.Model | None, params: float | None, device: presets.Device, ranks: int, seq: int,
    micro_batch: int | None, global_tokens: float | None, wire: str, bandwidth: float, mfu: float,
    base_lr: float | None, total_steps: float,
) -> Answer:  # fmt: skip
    """Does it fit, which batch, how long is a step, how far does it scale, what is data parallelism here?"""
    if model is not None and params is not None:
        raise InputError("overview needs either --model or --params, not both")
    shape = model or (None if params is not None else presets.MODELS[_ASSUMED])
    size = params if shape is None else shape.params
    unit = shape.largest_unit if shape else None
    if micro_batch is None and global_tokens is None:
        micro_batch = 1
    tokens = global_tokens_of(ranks, micro_batch, seq, global_tokens)
    activations = dict.fromkeys(("micro_batch", "seq", "hidden", "layers", "heads"))
    if shape is not None:
        activations = {"micro_batch": micro_batch or 1, "seq": seq, "hidden": shape.hidden, "layers": shape.layers}
        activations["heads"] = shape.heads
    held = memory(size, ranks, "bf16", "no", unit, "full" if shape else "none", **activations)
    room = device.memory_gb * 1e9
    left = room - next((figure.value for figure in held.figures if figure.name == "activation_bytes"), 0)
    figures, sentence = _smallest_stage(held, ranks, room)
    link = (wire, bandwidth, None, device.bf16_tflops, mfu)
    others = tuple(sorted({max(1, ranks // 4), ranks, 4 * ranks}))
    sections = (
        ("Does it fit?", fit_room(size, left, widths("bf16"), unit)),
        ("What does a rank hold?", held),
        ("Which batch?", batch(tokens, seq, micro_batch or 1, ranks)),
        ("How long is a step?", step(size, ranks, None, seq, tokens, wire, bandwidth, device.bf16_tflops, mfu)),
        ("How far does it scale at this batch?", wall(tokens, wire, bandwidth, device.bf16_tflops, mfu)),
        ("How efficient is it at this batch?", efficiency(size, others, None, tokens, *link)),
        *(
            (("Which learning rate?", lr(base_lr, None, None, ranks, total_steps, 0.05)),)
            if base_lr is not None
            else ()
        ),
        ("What is data parallelism at this size?", regime(ranks, size, figures[0].value)),
    )
    assumed = () if model or params else (f"assumed --model {_ASSUMED}; give --model or --params",)
    explained = "`ringdp plan KIND --help` explains each question by itself"
    return Answer(figures, advice=(*assumed, sentence, explained), sections=sections)


def _smallest_stage(held: Answer, ranks: int, room: float) -> tuple[tuple[Figure, ...], str]:
    """The ZeRO stage with least communication and code that fits on these ranks."""
    known = {figure.name: figure.value for figure in held.figures}
    sizes = {s: known.get(f"stage{s}_total_bytes", known[f"stage{s}_bytes"]) for s in STAGES}
    stage = next((s for s in STAGES if sizes[s] <= room), None)
    figure = Figure("smallest_stage_that_fits", stage, "", f"on {counted(ranks, 'rank')}, of what is counted below")
    if stage is None:
        way_out = "use more, or larger devices, or divide the model itself"
        return (figure,), f"no ZeRO stage fits {counted(ranks, 'rank')}: {way_out}"
    fits = f"ZeRO stage {stage} fits, with {byte_size(sizes[stage])} of {byte_size(room)}"
    return (figure,), f"on {counted(ranks, 'rank')} {fits}"


KINDS = (
    Kind(
        "overview",
        "all of it for one model on one cluster (the default)",
        (
            Input("model", presets.model, "one of " + ", ".join(presets.MODELS), ""),
            Input("params", count, "parameters, instead of --model", ""),
            Input("device", presets.device, "one of " + ", ".join(presets.DEVICES), "h100"),
            Input("ranks", whole, "data-parallel ranks", "256"),
            Input("seq", whole, "tokens per sample", "4096"),
            Input("micro_batch", whole, "samples per rank and step, or give --global-tokens", ""),
            Input("global_tokens", count, "tokens of all ranks per step", ""),
            WIRE,
            Input(BANDWIDTH.name, BANDWIDTH.parse, BANDWIDTH.help, "400GB/s"),
            MFU,
            Input("base_lr", amount, "a rate that is known to be good on one rank, to be scaled", ""),
            Input("total_steps", count, "of the whole run, for the warm-up of --base-lr", "10K"),
        ),
        overview,
        "--model llama-70b --device h100 --ranks 256 --bandwidth 400GB/s",
    ),
)
