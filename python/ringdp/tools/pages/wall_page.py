"""The scaling calculator: when does communication stop hiding behind compute? Computed by the planner's own formulas.

The page has ringdp/tools/planner/formulas.py in JavaScript (javascript.py translates it); wall.js only reads sliders,
calls those functions, fills cards and draws the curve.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from importlib import resources

from ringdp.tools.pages import javascript
from ringdp.tools.pages.document import Tab, asset, data
from ringdp.tools.planner.presets import DEVICES, MODELS

# Bytes of one gradient element on the wire, as the calculator offers them.
PRECISIONS = {"FP32": 4, "BF16": 2, "FP8": 1}
# Weights and gradients in 2 bytes each, a float32 master and Adam's two moments in 12.
STATE = {"weight_bytes": 2, "gradient_bytes": 2, "state_bytes": 12}


def _preset(model: str, device: str, ranks: int, tokens: int, bandwidth: float) -> dict[str, float | str]:
    """A model on devices as the planner knows them, in the units of the page's fields; half of the peak is reached."""
    known = {"params": MODELS[model].params / 1e9, "peak": DEVICES[device].bf16_tflops, "mfu": 50}
    known["device"] = DEVICES[device].memory_gb
    return {**known, "ranks": ranks, "tokens": tokens, "bandwidth": bandwidth, "wire": "BF16"}


PRESETS = {
    "LLaMA-70B / 256 H100": _preset("llama-70b", "h100", 256, 1048576, 400),
    "LLaMA-70B / 2048 H100": _preset("llama-70b", "h100", 2048, 1048576, 400),
    "LLaMA-7B / 64 A100": _preset("llama-7b", "a100", 64, 524288, 50),
}


def formulas() -> str:
    """The planner's module as JavaScript: an object `formulas`."""
    return javascript.module((resources.files("ringdp.tools.planner") / "formulas.py").read_text(encoding="utf-8"))


def _options(names: Iterable[str]) -> str:
    return "".join(f'<option value="{name}">{name}</option>' for name in map(html.escape, names))


def tab() -> Tab:
    """The calculator as a tab of a page."""
    body = asset("wall.html").format(presets=_options(PRESETS), wires=_options(PRECISIONS))
    given = {"presets": PRESETS, "precisions": PRECISIONS, "state": STATE}
    return Tab("wall", "Scaling calculator", body + data("wall-data", given))


def scripts() -> list[str]:
    """What the tab runs: formulas first."""
    return [formulas(), asset("wall.js")]
