"""The step of a bucket on a device, as a sink: nothing is taken on the host, and pieces may come in any order."""

from __future__ import annotations

import pytest
import torch
from ringdp import _native

_C = _native.load()
ADAM = (1e-3, 0.9, 0.999, 1e-8, 0.0, False, False, False)


def sink(*offsets: int) -> object:
    pieces = [(offset, [torch.zeros(4), torch.zeros(4)], 1.0, ADAM) for offset in offsets]
    return _C.device_sink(torch.zeros(64), pieces)


def test_it_is_known_from_those_of_the_cpu():
    assert sink(0).on_device
    assert not _C.step_sink([]).on_device


def test_it_takes_nothing_on_the_host():
    with pytest.raises(RuntimeError, match="a step on a device was given means on the host"):
        sink(0).take(0, torch.zeros(4))


def said_of_orders() -> list[str]:
    """On a rank: what is said of pieces in order, out of order, and one over another."""
    backend = torch.distributed.group.WORLD._get_backend(torch.device("cpu"))
    found = []
    for offsets in ((0, 8), (8, 0), (0, 0)):
        with pytest.raises(RuntimeError) as error:
            backend.reduce_scatter_step(torch.zeros(64), 2.0, sink(*offsets))
        found.append(str(error.value))
    return found


def test_pieces_come_in_any_order(pair):
    for in_order, out_of_order, over_each_other in pair.run(said_of_orders):
        assert "not of a device" in in_order and out_of_order == in_order
        assert "the piece at 0 of 4 elements must begin" in over_each_other
