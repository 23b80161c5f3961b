"""Which root and which rounding torch uses here: found, not assumed. The bits are tested by test_native.py."""

from __future__ import annotations

import torch
from ringdp import _native

_C = _native.load()


def stepped(count: int, **how: bool) -> torch.Tensor:
    """Parameters after one step of Adam whose result shows the root of every gradient's square."""
    values = torch.rand(count, generator=torch.Generator().manual_seed(1)) + 0.5
    result, zeros = torch.zeros(count), [torch.zeros(count) for _ in range(2)]
    scalars = {"lr": 1.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
    flags = {"decoupled": False, "amsgrad": False, "maximize": False}
    _C.adam_steps([result], [zeros[0]], [zeros[1]], [], [1.0], **scalars, **flags, **how).run([0], [values])
    return result


def test_torchs_root_is_used_by_default():
    """The formula by torch's own operators; where torch's root is the IEEE one both steps are equal."""
    count = 100_000
    values = torch.rand(count, generator=torch.Generator().manual_seed(1)) + 0.5
    mean = torch.zeros(count).lerp_(values, 1 - 0.9)
    square = torch.zeros(count).mul_(0.999).addcmul_(values, values, value=1 - 0.999)
    denominator = (square.sqrt() / (1 - 0.999) ** 0.5).add_(1e-8)
    expected = torch.zeros(count).addcdiv_(mean, denominator, value=-1.0 / (1 - 0.9))
    assert torch.equal(stepped(count, fastest=False), expected)
    ieee = torch.equal(square.sqrt(), square.double().sqrt().float())
    assert torch.equal(stepped(count, fastest=True), expected) == ieee
