"""What a step took, as the wrapper knows it: ringdp's has a timeline, torch's its logging data."""

from __future__ import annotations

import struct
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from ringdp import _native

_C = _native.load()
_NS = 1e-9
_ROW = struct.Struct("<qq5d")  # a StepRow of csrc/trace/step_judge.h
ROW_BYTES = _ROW.size
KEPT = 1024  # steps that wait for the thread, at most
_TORCHS_RATE = 100  # every so many steps torch's class notes its times, unless it is told otherwise


class Row(NamedTuple):
    """One step of one rank, in seconds; zeros where the wrapper says nothing.

    key: how many collectives the group had begun, which is equal on all ranks. number: steps since the watch began.
    data: between the step before and the forward pass. compute: forward and backward passes. exposed: the part of
    `communication` during which nothing was left to compute.
    """

    key: int
    number: int
    seconds: float
    data: float = 0.0
    compute: float = 0.0
    exposed: float = 0.0
    communication: float = 0.0


def packed(rows: Iterable[Row]) -> bytes:
    """As they travel, and as _C.StepJudge takes them."""
    return b"".join(starmap(_ROW.pack, rows))


def unpacked(rows: bytes) -> Iterator[Row]:
    """Of what packed() returns."""
    return starmap(Row, _ROW.iter_unpack(rows))


class NoFigures:
    """Of a model that is not wrapped: only how long its steps take."""

    clock: Callable[[], int] = staticmethod(time.monotonic_ns)
    stride = 2  # of so many steps one is read: reading takes long
    has_waits = False  # whether there are exposed times
    are_kept = False  # by the wrapper: there is nothing to note in each step, and taken() has them

    def read(self) -> Any:
        """What is noted during the step, quickly."""
        return None

    def row(self, key: int, number: int, raw: Any, times: Sequence[int]) -> Row:
        """Made of it later. times: when the optimizer stepped on this clock, the latest last."""
        return Row(key, number, (times[-1] - times[-2]) * _NS)

    def taken(self, stride: int) -> tuple[list[float], bytes]:
        """Of the steps since the last call, where they are kept: the seconds of each, every `stride`-th one's row."""
        return [], b""

    def close(self) -> None:
        """Leaves the wrapper as it was."""


class RingdpFigures(NoFigures):
    """Of ringdp's wrapper, which keeps its timelines. A step is a pass, and ends when every .grad is in place."""

    has_waits = True
    are_kept = True

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        self._reducer = weakref.ref(wrapper.reducer)
        self._rows = _C.StepRows()
        wrapper.reducer.keep_timelines(KEPT)

    def read(self) -> Any:
        reducer = self._reducer()
        return reducer.timeline()["sequence"] if reducer is not None else None

    def taken(self, stride: int) -> tuple[list[float], bytes]:
        reducer = self._reducer()
        return self._rows.take(reducer, stride) if reducer is not None else ([], b"")

    def close(self) -> None:
        if (reducer := self._reducer()) is not None:
            reducer.keep_timelines(0)


class TorchFigures(NoFigures):
    """Of torch's wrapper, which notes a step's times when the next forward pass begins.

    On the CPU it is asked to do so in every step. On a device that would wait for the device: there torch's own rate
    stays, and most steps have no figures.
    """

    clock = staticmethod(time.time_ns)

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        self._wrapper = weakref.ref(wrapper)
        self._asked = self.has_waits = wrapper.device_type == "cpu"
        if self._asked:
            wrapper._set_ddp_runtime_logging_sample_rate(1)

    def read(self) -> Any:
        wrapper = self._wrapper()
        return wrapper._get_ddp_logging_data() if wrapper is not None and self._asked else None

    def row(self, key: int, number: int, raw: Any, times: Sequence[int]) -> Row:
        if len(times) < 3:
            return super().row(key, number, raw, times)
        row = super().row(key, number - 1, raw, times[:-1])
        if not isinstance(raw, Mapping) or raw.get("forward_compute_time_start", 0) < times[-3]:
            return row
        communication = raw["backward_comm_time"] * _NS
        hidden = raw["backward_compute_comm_overlap_time"] * _NS
        return row._replace(
            data=(raw["forward_compute_time_start"] - times[-3]) * _NS,
            compute=max(0, raw["forward_compute_time"] + raw["backward_compute_time"]) * _NS,
            exposed=max(0.0, communication - hidden),
            communication=max(0.0, communication),
        )

    def close(self) -> None:
        wrapper = self._wrapper()
        if wrapper is not None and self._asked:
            wrapper._set_ddp_runtime_logging_sample_rate(_TORCHS_RATE)


def figures_of(model: torch.nn.Module) -> NoFigures:
    """How this model's steps are read."""
    if not isinstance(model, DistributedDataParallel):
        return NoFigures()
    return RingdpFigures(model) if hasattr(model, "zero_stage") else TorchFigures(model)
