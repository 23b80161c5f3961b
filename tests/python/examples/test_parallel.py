"""The wrapper of a run, by kind."""

from __future__ import annotations

import pytest
import ringdp
from ringdp.examples.parallel import KINDS, data_parallel, name_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("kind", "cls"), [("ringdp", ringdp.DistributedDataParallel), ("stock", Stock)])
def test_each_kind_is_its_class_with_views(kind, cls):
    wrapped = data_parallel(nn.Linear(2, 2), kind)
    assert type(wrapped) is cls and wrapped.gradient_as_bucket_view


def test_every_kind_has_a_name():
    assert len({name_of(kind) for kind in KINDS}) == len(KINDS)
