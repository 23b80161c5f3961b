"""The protocol is met by the adapters and by the tests' sharded holder, and not by anything else."""

from __future__ import annotations

import torch
from ringdp.checkpoint import Holder
from ringdp.checkpoint.combined import Combined
from ringdp.checkpoint.module import ModuleHolder
from ringdp.checkpoint.optimizer import OptimizerHolder
from states import Sharded
from torch import nn


def test_who_is_a_holder():
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    held = ModuleHolder(module)
    for holder in (held, OptimizerHolder(optimizer, module), Combined(held), Sharded({}, 0, 1, 0)):
        assert isinstance(holder, Holder)
    for other in (module, optimizer, {}):
        assert not isinstance(other, Holder)
