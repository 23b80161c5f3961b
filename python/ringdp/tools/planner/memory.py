"""Memory per rank at every ZeRO stage, activations included, and on how many ranks a model fits a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringdp.text.units import counted
from ringdp.tools.planner import formulas
from ringdp.tools.planner.presets import device_gigabytes
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind, Table
from ringdp.tools.planner.units import count, gigabytes, one_of, whole

STAGES = (0, 1, 2, 3)
_ACTIVATION_INPUTS = ("micro_batch", "seq", "hidden", "layers", "heads")


@dataclass(frozen=True)
class Widths:
    """Bytes per parameter of what training with Adam holds."""

    weights: float
    gradient: float
    master: float
    moments: float

    @property
    def state(self) -> float:
        """What stage 1 divides: master weights and moments."""
        return self.master + self.moments

    @property
    def three(self) -> tuple[float, float, float]:
        """weights, gradient, state: as the formulas take them."""
        return self.weights, self.gradient, self.state


_WIDTHS = {"bf16": Widths(2, 2, 4, 8), "fp16": Widths(2, 2, 4, 8), "fp32": Widths(4, 4, 0, 8)}


def widths(dtype: str, fp32_accumulation: str = "no") -> Widths:
    """Bytes per parameter in `dtype`; accumulating gradients in float32 in addition takes 4 bytes more."""
    found = _WIDTHS[dtype]
    if fp32_accumulation == "yes" and dtype == "fp32":
        raise InputError("--fp32-accumulation yes: gradients of --dtype fp32 are in float32 already: leave it out")
    extra = 4 if fp32_accumulation == "yes" else 0
    return Widths(found.weights, found.gradient + extra, found.master, found.moments)


def activation_bytes(
    micro_batch: int, seq: int, hidden: int, layers: int, heads: int, dtype: str, recompute: str
) -> float:
    """Saved for backward by `layers` transformer layers; recomputed layers keep their input and one layer is whole."""
    element = _WIDTHS[dtype].weights
    whole_layer = formulas.layer_activation_bytes(micro_batch, seq, hidden, heads, element)
    if recompute == "full":
        return layers * formulas.layer_input_bytes(micro_batch, seq, hidden, element) + whole_layer
    if recompute == "scores":
        return layers * formulas.layer_activation_bytes_without_scores(micro_batch, seq, hidden, element)
    return layers * whole_layer


def memory(
    params: float, ranks: int, dtype: str, fp32_accumulation: str, largest_unit: float | None, recompute: str,
    **shape: Any,
) -> Answer:  # fmt: skip
    """What a rank holds at stages 0 to 3."""
    held = widths(dtype, fp32_accumulation)
    at = {stage: formulas.stage_bytes(params, ranks, stage, *held.three) for stage in STAGES}
    limits = {stage: formulas.stage_limit_bytes(params, stage, *held.three) for stage in STAGES[1:]}
    whole_ = [f"{part:g}P" for part in (held.weights, held.gradient, held.master, held.moments)]
    figures = [
        Figure("weights_bytes", params * held.weights, "bytes", whole_[0]),
        Figure("gradient_bytes", params * held.gradient, "bytes", whole_[1]),
        Figure("master_bytes", params * held.master, "bytes", whole_[2] + ", float32 weights"),
        Figure("moments_bytes", params * held.moments, "bytes", whole_[3] + ", Adam's two in float32"),
        *(Figure(f"stage{stage}_bytes", at[stage], "bytes", formula_text(stage, held)) for stage in STAGES),
        *(Figure(f"stage{stage}_limit_bytes", limits[stage], "bytes", "with any number of ranks") for stage in limits),
        *_saved(params, ranks, held),
    ]
    transient = _transient(largest_unit, held)
    activations = _activations(shape, dtype, recompute)
    rows = tuple(
        (s, formula_text(s, held), at[s], limits.get(s, at[0]), formulas.volume_elements(params, s, 1)) for s in STAGES
    )
    columns = (
        ("stage", ""), ("formula", ""), ("per rank", "bytes"), ("limit", "bytes"),
        ("sent in a step, times (N-1)/N", "elements"),
    )  # fmt: skip
    extra = sum(figure.value for figure in activations)
    totals = [
        Figure(
            f"stage{stage}_total_bytes",
            at[stage] + extra + (transient[0].value if transient and stage == 3 else 0),
            "bytes",
            "with activations" + (" and gathered units" if transient and stage == 3 else ""),
        )
        for stage in STAGES
        if activations or (transient and stage == 3)
    ]
    advice = ("data parallelism divides work, not weights: stage 0 is the same on any number of ranks",)
    every = (*figures, *transient, *activations, *totals)
    return Answer(every, (Table("per rank, by ZeRO stage", columns, rows),), advice)


def formula_text(stage: int, held: Widths) -> str:
    """As papers write it: 4P + 12P/N."""
    kept = formulas.whole_bytes_per_parameter(stage, *held.three)
    divided = formulas.sharded_bytes_per_parameter(stage, *held.three)
    parts = [f"{kept:g}P" if kept else "", f"{divided:g}P/N" if divided else ""]
    return " + ".join(part for part in parts if part)


def _saved(params: float, ranks: int, held: Widths) -> list[Figure]:
    moments = formulas.stage_saved_bytes(params, ranks, held.moments)
    state = formulas.stage_saved_bytes(params, ranks, held.state)
    return [
        Figure("stage1_saved_moments_bytes", moments, "bytes", f"{held.moments:g}P (N-1)/N"),
        Figure("stage1_saved_moments_and_master_bytes", state, "bytes", f"{held.state:g}P (N-1)/N"),
    ]


def _transient(largest_unit: float | None, held: Widths) -> tuple[Figure, ...]:
    if largest_unit is None:
        return ()
    size = formulas.stage3_transient_bytes(largest_unit, largest_unit, held.weights, held.gradient)
    return (Figure("stage3_transient_bytes", size, "bytes", "two units gathered, gradients of one"),)


def _activations(shape: dict[str, Any], dtype: str, recompute: str) -> tuple[Figure, ...]:
    missing = [name for name in _ACTIVATION_INPUTS if shape[name] is None]
    if len(missing) == len(_ACTIVATION_INPUTS) and recompute == "none":
        return ()
    if missing:
        options = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise InputError(f"memory needs {options} too for activations, which depend on all of their sizes")
    size = activation_bytes(**shape, dtype=dtype, recompute=recompute)
    return (Figure("activation_bytes", size, "bytes", f"recompute {recompute} (Korthikanti et al., 2022)"),)


def fit(
    params: float, device_gb: float, dtype: str, fp32_accumulation: str, reserve_gb: float | None,
    largest_unit: float | None,
) -> Answer:  # fmt: skip
    """On how many ranks every stage fits, leaving `reserve_gb` to activations, buffers and the framework."""
    room = (device_gb - (reserve_gb or 0)) * 1e9
    if room <= 0:
        raise InputError(f"--reserve-gb {reserve_gb:g} leaves nothing of --device-gb {device_gb:g}")
    return fit_room(params, room, widths(dtype, fp32_accumulation), largest_unit)


def fit_room(params: float, room: float, held: Widths, largest_unit: float | None) -> Answer:
    """The same for `room` bytes of a device, which may be none."""
    transient = _transient(largest_unit, held)
    passing = {3: transient[0].value} if transient else {}
    fewest = {
        stage: formulas.min_ranks(
            params * formulas.whole_bytes_per_parameter(stage, *held.three) + passing.get(stage, 0),
            params * formulas.sharded_bytes_per_parameter(stage, *held.three),
            room,
        )
        for stage in STAGES
    }
    figures = (
        Figure("stage0_fits", fewest[0] is not None, "", f"{formula_text(0, held)} <= room"),
        Figure("needed_bytes", formulas.stage_bytes(params, 1, 0, *held.three), "bytes", formula_text(0, held)),
        Figure("room_bytes", room, "bytes", "device - reserve (in the overview: activations)"),
        *(
            Figure(f"stage{s}_min_ranks", fewest[s], "ranks", _fits_text(s, held, gathered=s in passing))
            for s in STAGES
        ),
        *transient,
    )
    return Answer(figures, (), (fit_sentence(fewest),), () if fewest[0] else (CAPACITY,))


def _fits_text(stage: int, held: Widths, gathered: bool) -> str:
    return f"{formula_text(stage, held)}{' + gathered units' if gathered else ''} <= room"


CAPACITY = "plain data parallelism adds throughput, never capacity: on any number of ranks each must hold all of it"


def fit_sentence(fewest: dict[int, float | None]) -> str:
    """Which stage and how many ranks fit."""
    if fewest[0] is not None:
        return "fits without ZeRO"
    fitting = [
        f"stage {stage} from {counted(fewest[stage], 'rank')}" for stage in STAGES[1:] if fewest[stage] is not None
    ]
    if not fitting:
        return "fits at no stage: take a larger device, or divide the model itself (tensor or pipeline parallelism)"
    return "fits with ZeRO " + ", ".join(fitting)


_UNIT = Input("largest_unit", count, "parameters of the largest unit (stage 3 gathers two)", "")
_DTYPE = Input("dtype", one_of("bf16", "fp16", "fp32"), "of parameters; 16-bit ones have a float32 master", "bf16")
_ACCUMULATION = Input("fp32_accumulation", one_of("no", "yes"), "gradients in float32 in addition to 16-bit ones", "no")

KINDS = (
    Kind(
        "memory",
        "bytes per rank at ZeRO stages 0 to 3",
        (
            Input("params", count, "parameters, as 70B"),
            Input("ranks", whole, "data-parallel ranks"),
            _DTYPE,
            _ACCUMULATION,
            _UNIT,
            Input("micro_batch", whole, "samples per rank and backward pass (activations)", ""),
            Input("seq", whole, "tokens per sample (activations)", ""),
            Input("hidden", whole, "width of a layer (activations)", ""),
            Input("layers", whole, "transformer layers (activations)", ""),
            Input("heads", whole, "attention heads (activations)", ""),
            Input("recompute", one_of("none", "scores", "full"), "activations computed again", "none"),
        ),
        memory,
        "memory --params 70B --ranks 64",
    ),
    Kind(
        "fit",
        "on how many ranks a model fits a device",
        (
            Input("params", count, "parameters, as 7B"),
            Input("device_gb", device_gigabytes, "memory of a device, as 80GB or h100"),
            _DTYPE,
            _ACCUMULATION,
            Input("reserve_gb", gigabytes, "left to activations and buffers", ""),
            _UNIT,
        ),
        fit,
        "fit --params 7B --device-gb 24",
    ),
)
