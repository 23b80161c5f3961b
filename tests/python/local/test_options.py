"""What a DiLoCo refuses: by name, on all ranks, before anything has changed."""

from __future__ import annotations

from typing import Any

import pytest
import ringdp
import torch
from ranks import HERE, error_of
from ringdp.testing import parameters_hash
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = (RuntimeError, ValueError, TypeError, NotImplementedError)
# arguments -> words of the error
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"workers": 1}, "workers=1 on 2 ranks: each rank plays at least one worker"),
    ({"workers": 0}, "workers=0, must be a whole number of at least 1"),
    ({"workers": 2.0}, "workers=2.0, must be a whole number"),
    ({"every": 0}, "every=0, must be a whole number of at least 1"),
    ({"every": True}, "every=True, must be a whole number"),
    ({"start": -1}, "start=-1, must be a whole number of at least 0"),
    ({"fragments": 0}, "fragments=0, must be"),
    ({"fragments": 5}, "fragments=5 with every=4"),
    ({"fragments": 3}, "fragments=3: fragment 0 would have no elements"),
    ({"delay": 4}, "delay=4 with every=4: a fragment arrives before it leaves again"),
    ({"delay": -1}, "delay=-1, must be"),
    ({"outer_lr": 0}, "outer_lr=0, must be above 0 and finite"),
    ({"outer_lr": float("inf")}, "outer_lr=inf, must be above 0 and finite"),
    ({"outer_lr": float("nan")}, "outer_lr=nan, must be above 0 and finite"),
    ({"outer_lr": "0.7"}, "outer_lr='0.7', must be above 0"),
    ({"outer_lr": True}, "outer_lr=True, must be above 0"),
    ({"nesterov": "no"}, "nesterov='no', must be True or False"),
    ({"seed": 1.5}, "seed=1.5, must be a whole number"),
    ({"seed": True}, "seed=True, must be a whole number"),
    ({"momentum": 1.0}, "momentum=1.0, must be at least 0 and below 1"),
    ({"alpha": 1.0}, "alpha=1.0, must be at least 0 and below 1, as with 1 nobody would take what arrives"),
    ({"compress": "sign"}, "compress='sign': there are None, 'int8', 'int4', 'topk', 'topk-2bit'; signs"),
    ({"compress": "fp8"}, "compress='fp8'"),
    ({"grace": 1.0}, "grace=1.0 without quorum=: all workers wait for all"),
    ({"rounds": 3}, "rounds=3 without quorum=: all workers wait for all"),
    ({"quorum": 3, "rounds": 3}, "quorum=3, must be a whole number from 1 to workers=2"),
    ({"quorum": 0, "rounds": 3}, "quorum=0, must be a whole number from 1 to workers=2"),
    ({"quorum": True, "rounds": 3}, "quorum=True, must be a whole number"),
    ({"quorum": 1}, "rounds=None, must be a whole number of at least 1: with quorum= workers stop after so many"),
    ({"quorum": 1, "rounds": 0}, "rounds=0, must be a whole number of at least 1"),
    ({"quorum": 1, "rounds": 3, "grace": -1.0}, "grace=-1.0, must be seconds, at least 0 and finite"),
    ({"quorum": 1, "rounds": 3, "grace": float("inf")}, "grace=inf, must be seconds"),
    ({"quorum": 1, "rounds": 3, "start": 2}, "start=2 with quorum=1: synchronous steps wait for all workers"),
    ({"quorum": 1, "rounds": 3, "fragments": 2}, "fragments=2 with quorum=1: workers do not meet after the same steps"),
    ({"quorum": 1, "rounds": 3, "delay": 1}, "delay=1 with quorum=1: a worker waits for the outer step"),
    ({"quorum": 1, "rounds": 3, "alpha": 0.5}, "alpha=0.5 with quorum=1: workers go on from the outer parameters"),
]


def linear(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2, **changes)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def made(model: Any = None, inner: Any = sgd, **arguments: Any) -> Any:
    return ringdp.DiLoCo(linear() if model is None else model, inner, **{"workers": 2, "every": 4, **arguments})


def refusal(*given: Any, **arguments: Any) -> str:
    return error_of(lambda: made(*given, **arguments), kind=KINDS)


def all_refusals() -> list[str]:
    """On a rank."""
    return [refusal(**arguments) for arguments, _ in REFUSED]


def test_arguments_are_refused_by_name(pair):
    for found in pair.run(all_refusals):
        assert [(text, said) for said, (_, text) in zip(found, REFUSED, strict=True) if text not in said] == []


def models() -> list[tuple[str, str]]:
    """On a rank: (error, words of it)."""
    meta = nn.Linear(2, 2, device="meta")
    frozen = linear().requires_grad_(False)
    sync = nn.Sequential(linear(), nn.SyncBatchNorm(2))
    sparse = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    ddp = ringdp.DistributedDataParallel(linear())
    twice = nn.Sequential(linear(), linear())
    twice[1].weight.data = twice[0].weight.data
    return [
        (refusal(nn.Sequential(ddp)), "has a DistributedDataParallel"),
        (refusal(twice), "parameters 0.weight and 1.weight are different ones in the same memory"),
        (refusal(ddp), "the model is or has a DistributedDataParallel, which averages gradients in every step"),
        (refusal(torch.ones(2)), "the model is a Tensor, must be a torch.nn.Module"),
        (refusal(linear(dtype=torch.float64)), "parameter weight is float64: outer parameters are float32"),
        (refusal(linear(dtype=torch.complex64)), "parameter weight is complex64"),
        (refusal(frozen), "no parameter of the model requires a gradient"),
        (refusal(nn.ReLU()), "no parameter of the model requires a gradient"),
        (refusal(meta), "parameter weight is on the meta device"),
        (refusal(sync), "1 is a SyncBatchNorm, which communicates in every pass"),
        (refusal(sparse, start=2), "0 has sparse gradients, and start=2 averages them"),
    ]


def optimizers() -> list[tuple[str, str]]:
    """On a rank: (error, words of it)."""
    foreign, model, rate = nn.Parameter(torch.ones(2)), linear(), torch.tensor(0.1)
    shared = sgd(list(model.parameters()))
    adam = lambda ps: torch.optim.Adam(ps, lr=rate, capturable=False)  # noqa: E731
    return [
        (refusal(model, lambda ps: shared, workers=4), "inner has given two workers the same SGD: make a new one"),
        (refusal(None, adam, workers=4), "inner has given two workers the same tensor as lr of a Adam"),
        (refusal(None, lambda ps: torch.optim.LBFGS(ps)), "inner has given a LBFGS, whose step needs a closure"),
        (refusal(None, lambda ps: []), "inner has given no optimizer"),
        (refusal(None, shared), "inner is a SGD, must be a function that makes an optimizer"),
        (refusal(None, lambda ps: ["adam"]), "inner has given a str, must be a torch.optim.Optimizer"),
        (refusal(None, lambda ps: sgd([foreign])), "a SGD of parameters that are not trained ones of the model"),
        (
            refusal(None, lambda ps: ringdp.ZeroOptimizer(ps, torch.optim.SGD, lr=0.1)),
            "inner has given a ZeroOptimizer, which shards its state over ranks",
        ),
    ]


@pytest.mark.parametrize("what", [models, optimizers])
def test_what_no_worker_can_have_of_its_own_is_refused(pair, what):
    for found in pair.run(what):
        assert [(text, said) for said, text in found if text not in said] == []


def different() -> list[str]:
    """On a rank: one argument differs between ranks, or is wrong on one of them."""
    odd = HERE.rank == 1
    given = [
        {"every": 4 + odd},
        {"workers": 2 + odd},
        {"compress": "int8" if odd else None},
        {"alpha": 0.5 if odd else 0.25},
        {"delay": -1 if odd else 0},
        {"inner": lambda ps: torch.optim.SGD(ps, lr=0.2 if odd else 0.1)},
        {"inner": lambda ps: (torch.optim.Adam if odd else torch.optim.SGD)(ps, lr=0.1)},
        {"model": nn.Linear(4, 3 if odd else 2)},
        {"model": linear(dtype=torch.bfloat16 if odd else torch.float32)},
        {"inner": lambda ps: 1 / 0 if odd else sgd(ps)},
    ]
    return [refusal(**arguments) for arguments in given]


def test_ranks_that_differ_are_told_in_what(pair):
    words = [
        ("rank 0: every=4; rank 1: every=5",),
        ("rank 0: workers=2; rank 1: workers=3",),
        ("rank 0: compress=None; rank 1: compress='int8'",),
        ("rank 0: alpha=0.25; rank 1: alpha=0.5",),
        ("rank 1: ValueError: DiLoCo: delay=-1, must be",),
        ("SGD, group 0: lr=0.1", "SGD, group 0: lr=0.2"),
        ("rank 0: inner optimizer 0, SGD", "rank 1: inner optimizer 0, Adam"),
        ("torch.float32 [2, 4]", "torch.float32 [3, 4]"),
        ("torch.float32 [2, 4]", "torch.bfloat16 [2, 4]"),
        ("rank 1: ZeroDivisionError: division by zero",),
    ]
    for found in pair.run(different):
        assert [(said, text) for said, text in zip(found, words, strict=True) if not all(t in said for t in text)] == []


def unchanged() -> bool:
    """On a rank: after refusals ranks have the values that they had."""
    torch.manual_seed(HERE.rank)
    model = nn.Linear(4, 2)
    before = parameters_hash(model)
    errors = [refusal(model, every=0), refusal(model, every=4 + HERE.rank)]
    return all(errors) and parameters_hash(model) == before


def test_a_refusal_changes_nothing(pair):
    assert pair.run(unchanged) == [True, True]


def test_nesterov_without_momentum_is_of_no_effect():
    assert made(momentum=0.0, outer_lr=1.0).steps == 0
