"""`ringdp.integrations.Meter`: figures of a run for TensorBoard, W&B or whatever else draws a dict of numbers."""

from __future__ import annotations

import time
from typing import Any

from torch.nn.parallel import DistributedDataParallel as Stock

from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.tools.observe.stats import stats

_MIB = 2.0**20


class Meter:
    """Reads what the wrapper and its group have done since the last reading.

        meter = ringdp.integrations.Meter(ddp)
        ...
        accelerator.log(meter.read(), step=step)      # or wandb.log, or a loop over SummaryWriter.add_scalar

    ddp: of ringdp or of torch. Over another backend than ringdp's there is nothing about the group. Not collective.
    """

    def __init__(self, ddp: Stock) -> None:
        """TypeError for another wrapper."""
        if not isinstance(ddp, Stock):
            raise TypeError(f"Meter: {type(ddp).__name__} is not a DistributedDataParallel of ringdp or of torch")
        self._ddp = ddp
        self._read_at, self._group = time.monotonic(), self._counted()

    def read(self) -> dict[str, float]:
        """Of the time since the last reading, or since the meter was made; costs about 50 microseconds.

        ringdp/collectives_per_s, ringdp/MiB_per_s over links, ringdp/memory_MiB_per_s in shared memory
        ringdp/late/rank_1: the share of the time during which all others waited for rank 1 alone, 0 to 1
        ringdp/forward_ms, backward_ms, exposed_ms, ringdp/overlap: of the latest step, from ringdp's wrapper
        """
        before, began = self._group, self._read_at
        self._read_at, self._group = time.monotonic(), self._counted()
        found: dict[str, float] = {}
        if before is not None and self._group is not None:
            seconds = max(self._read_at - began, 1e-9)
            rates = {
                name: (self._group["counters"][name] - count) / seconds for name, count in before["counters"].items()
            }
            found["ringdp/collectives_per_s"] = rates["collectives"]
            found["ringdp/MiB_per_s"] = rates["wire_bytes_sent"] / _MIB
            found["ringdp/memory_MiB_per_s"] = rates["memory_bytes_written"] / _MIB
            late = zip(before["delays"], self._group["delays"], strict=True)
            found |= {f"ringdp/late/rank_{rank}": (now - then) / seconds for rank, (then, now) in enumerate(late)}
        if isinstance(self._ddp, DistributedDataParallel) and (times := self._ddp.times()).step:
            for name in ("forward", "backward", "exposed"):
                found[f"ringdp/{name}_ms"] = 1e3 * getattr(times, name)
            found["ringdp/overlap"] = times.overlap
        return found

    def _counted(self) -> dict[str, Any] | None:
        """Of the wrapper's group; None where it is of another backend."""
        name = self._ddp.process_group.group_name
        return next((group for group in stats()["groups"] if group["name"] == name), None)
