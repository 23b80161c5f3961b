"""What the tests of calls run on a rank."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.selftest.calls import RankContext
from ringdp.selftest.cases import OPS
from ringdp.selftest.oracle import difference, has_meaning

COUNT = 7
DTYPES = (torch.int64, torch.float32)
DONE = SimpleNamespace(wait=lambda: None)


def differences(op: str, asynchronous: bool, label: str = "") -> tuple[int, list[str]]:
    """How many checks the op makes on this rank, and what differs."""
    context = RankContext(HERE.rank, HERE.size, label=f"{op} {asynchronous} {label}", asynchronous=asynchronous)
    found, checks = [], 0
    for dtype in DTYPES:
        for reduce in ["SUM", "MAX", "AVG"] if OPS[op].reduces else [""]:
            if reduce and not has_meaning(dtype, reduce):
                continue
            for what, got, want in OPS[op].call(context, dtype, reduce, COUNT):
                checks += 1
                differs = difference(got, want)
                found += [f"{op} {dtype} {reduce} {what}: {differs}"] if differs else []
    return checks, found


def differences_without(op: str, function: str) -> tuple[int, list[str]]:
    """The same where that function of torch.distributed does nothing."""
    with mock.patch.object(dist, function, return_value=[DONE] if function.startswith("batch") else DONE):
        return differences(op, False, "inputs that no freed memory holds")
