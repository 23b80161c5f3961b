"""Known models and devices, so that a name may stand for their numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ringdp.tools.planner.units import Parser, UnitError, amount, gigabytes


@dataclass(frozen=True)
class Model:
    """A transformer: parameters in all and of its largest unit, and its shape."""

    params: float
    largest_unit: float
    layers: int
    hidden: int
    heads: int


@dataclass(frozen=True)
class Device:
    """bf16_tflops: dense peak of the data sheet. memory_gb: SI gigabytes, as sold."""

    bf16_tflops: float
    memory_gb: float


MODELS = {
    "gpt2": Model(124e6, 38.6e6, 12, 768, 12),
    "gpt2-xl": Model(1.56e9, 80.4e6, 48, 1600, 25),
    "llama-7b": Model(7e9, 202e6, 32, 4096, 32),
    "llama-70b": Model(70e9, 856e6, 80, 8192, 64),
}
DEVICES = {
    "v100": Device(125, 32),
    "a100-40": Device(312, 40),
    "a100": Device(312, 80),
    "h100": Device(989, 80),
    "h200": Device(989, 141),
    "b200": Device(2250, 192),
}


def device(text: str) -> Device:
    """A device by name."""
    if text not in DEVICES:
        raise UnitError(f"invalid value '{text}' for a device (expected one of: {', '.join(DEVICES)})")
    return DEVICES[text]


def peak_tflops(text: str) -> float:
    """10**12 operations per second: a number, or a device's name."""
    return DEVICES[text].bf16_tflops if text in DEVICES else _number(text, amount)


def device_gigabytes(text: str) -> float:
    """Memory: 80, 80GB, or a device's name."""
    return DEVICES[text].memory_gb if text in DEVICES else _number(text, gigabytes)


def _number(text: str, parse: Parser) -> float:
    try:
        return parse(text)
    except UnitError as error:
        raise UnitError(f"{error}, or a device: {', '.join(DEVICES)}") from None


def model(text: str) -> Model:
    """A model by name."""
    if text not in MODELS:
        raise UnitError(f"invalid value '{text}' for a model (expected one of: {', '.join(MODELS)}; or give --params)")
    return MODELS[text]
