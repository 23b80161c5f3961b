"""On a rank, and in the test's process: short runs of workers that step alone, and what they leave, as digests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import leafy
import ringdp
import torch
from ranks import group_of
from ringdp.testing import one_process_local
from torch import Tensor, nn

STEPS = 9
MUON = "muon"
# By name: the arguments; model, dtype, inner and frozen are the run's.
CELLS: dict[str, dict[str, Any]] = {
    "plain": {"workers": 8, "every": 4},
    "uneven": {"workers": 7, "every": 3, "nesterov": False},
    "local SGD": {"workers": 8, "every": 1, "outer_lr": 1, "momentum": 0.0, "inner": "sgd"},
    "post-local": {"workers": 8, "every": 3, "start": 4},
    "synchronous": {"workers": 5, "every": 3, "start": STEPS, "dtype": "bfloat16"},
    "streaming": {"workers": 8, "every": 4, "fragments": 3, "delay": 3, "alpha": 0.5},
    "streaming, start": {"workers": 8, "every": 4, "fragments": 2, "delay": 1, "start": 2},
    "int8": {"workers": 8, "every": 4, "compress": "int8"},
    "int4, streaming": {"workers": 8, "every": 4, "fragments": 2, "delay": 3, "alpha": 0.25, "compress": "int4"},
    "topk": {"workers": 8, "every": 4, "fragments": 2, "delay": 1, "compress": "topk", "momentum": 0.0},
    "two bits": {"workers": 8, "every": 4, "compress": "topk-2bit", "outer_lr": 1, "momentum": 0.0, "model": "wide"},
    "two bits, streaming": {
        "workers": 7,
        "every": 4,
        "fragments": 2,
        "delay": 2,
        "start": 1,
        "compress": "topk-2bit",
        "model": "wide",
    },
    "16 bits": {"workers": 8, "every": 4, "dtype": "bfloat16", "outer_lr": 0.1},
    "16 bits, int8": {"workers": 7, "every": 3, "dtype": "float16", "compress": "int8", "inner": "sgd"},
    "tied, frozen": {"workers": 8, "every": 3, "model": "tied", "frozen": True},
    "two optimizers": {"workers": 8, "every": 4, "model": "plain", "inner": MUON, "fragments": 2},
}
MODEL_OF = ("model", "dtype", "frozen")
DIGESTED = ("parameters", "buffers", "inner")  # of workers; and residuals


def model_of(cell: Mapping[str, Any]) -> nn.Module:
    """The same in every process."""
    model = leafy.made(cell.get("model", "branching"), cell.get("dtype", "float32"))
    if cell.get("frozen"):
        model.mix.weight.requires_grad_(False)
    return model


def inner_of(cell: Mapping[str, Any]) -> Any:
    """What makes inner optimizers."""
    kind = cell.get("inner", "adamw")
    if kind == MUON:
        return lambda ps: [
            torch.optim.Muon([p for p in ps if p.dim() == 2], lr=1e-2),
            torch.optim.AdamW([p for p in ps if p.dim() != 2], lr=1e-2),
        ]
    make = torch.optim.SGD if kind == "sgd" else torch.optim.AdamW
    return lambda ps: make(ps, lr=1e-2)


def arguments_of(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Of the DiLoCo."""
    return {name: value for name, value in cell.items() if name not in (*MODEL_OF, "inner")}


def begun(cell: Mapping[str, Any], backend: str | None = "ringdp") -> tuple[nn.Module, Any]:
    """On a rank: the model and its DiLoCo; backend None: without a group."""
    model = model_of(cell)
    group = group_of(backend) if backend else None
    return model, ringdp.DiLoCo(model, inner_of(cell), group=group, seed=5, **arguments_of(cell))


def trained(local: Any, model: nn.Module, steps: int) -> Any:
    """So many steps more."""
    for step in range(local.steps, local.steps + steps):
        for worker in local.workers():
            with local.worker(worker):
                own_loss(model, worker, step).backward()
        local.step()
    return local


def digests_of_cell(name: str, backend: str = "ringdp") -> list[Any]:
    """On a rank: of the state after STEPS steps."""
    model, local = begun(CELLS[name], backend)
    return digests(trained(local, model, STEPS).state_dict())


def digests(state: Mapping[str, Any]) -> list[Any]:
    """[{path: sha256} of whole tensors and plain values, {fragment: [(offset, bytes)]} of stretches]."""
    whole = {key: state[key] for key in ("outer", "momentum")}
    whole["workers"] = {
        worker: {**{kind: its[kind] for kind in DIGESTED}, "residual": _joined(its["residual"].values())}
        for worker, its in state["workers"].items()
    }
    stretches = {
        (kind, fragment): [(offset, _bytes(part)) for offset, part in parts]
        for kind in ("on_the_way", "residual")
        for fragment, parts in state[kind].items()
    }
    return [dict(leaves_of(whole)), stretches]


def own_loss(model: nn.Module, worker: int, step: int) -> Tensor:
    """Of a worker's samples."""
    return leafy.loss_of(model, 0, step, worker)


def expected(cell: Mapping[str, Any], steps: Any = STEPS, loss_of: Any = own_loss, log: Any = None) -> list[Any]:
    """The same of one process, by the definition; stretches are whole."""
    arguments = {"steps": steps, "seed": 5, "log": log, **arguments_of(cell)}
    run = one_process_local(model_of(cell), inner_of(cell), loss_of, **arguments)
    compressed = cell.get("compress") is not None
    workers = {
        worker: {
            "parameters": {name: parameter.detach() for name, parameter in run.trained(worker).items()},
            "buffers": dict(model.named_buffers()),
            "inner": [optimizer.state_dict() for optimizer in run.optimizers[worker]],
            "residual": _joined(run.residuals[worker] if compressed else []),
        }
        for worker, model in enumerate(run.models)
    }
    stretches = {("on_the_way", fragment): _bytes(mean) for fragment, mean in run.on_the_way.items()}
    for fragment, residuals in enumerate(run.residuals[-1] if compressed else []):
        stretches["residual", fragment] = _bytes(residuals)
    return [dict(leaves_of({"outer": run.outer, "momentum": run.momentum, "workers": workers})), stretches]


def differences(by_rank: Sequence[list[Any]], one: list[Any]) -> list[str]:
    """Where ranks together have other digests than one process, or not all of them."""
    wrong = [
        f"{path} on rank {r}" for r, (own, _) in enumerate(by_rank) for path in own if own[path] != one[0].get(path)
    ]
    found = {path for own, _ in by_rank for path in own}
    wrong += [f"{path} on no rank" for path in one[0] if path not in found]
    laid: dict[Any, list[tuple[int, bytes]]] = {}
    for _, stretches in by_rank:
        for key, parts in stretches.items():
            laid.setdefault(key, []).extend(parts)
    joined = {key: b"".join(part for _, part in sorted(parts)) for key, parts in laid.items()}
    return wrong + [str(key) for key in {*joined, *one[1]} if joined.get(key) != one[1].get(key)]


def _joined(tensors: Any) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.float32), *(tensor.flatten() for tensor in tensors)])


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def leaves_of(value: Any, path: str = "") -> Any:
    """(path, digest) of every tensor and plain value in nested dicts and lists."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves_of(inner, f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        yield from leaves_of(dict(enumerate(value)), path)
    elif isinstance(value, Tensor):
        data = _bytes(value)
        yield path, f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()}"
    else:
        yield path, repr(value)
