"""What the rehearsal of gpu-check runs in place of tests on a GPU: ranks on emulated devices, and a planted fault.

Not collected with other tests: gpu-check names the file. $PLANTED says what goes wrong in the second of three tests.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from native import WINDOW_BYTES, arrive, described
from ranks import HERE

COUNT = 4099
VICTIM = 1


def summed(library: str, planted: str) -> float:
    """On a rank: the last element of an all_reduce of ones on the device; or what is planted."""
    gpu, group = arrive(library, "SPIN")
    tensor = gpu.put(torch.ones(COUNT))
    if HERE.rank == VICTIM:
        if planted == "a rank hangs":
            time.sleep(3600)
        if planted == "a rank crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if planted == "a wrong sum":
            os.write(2, b"this rank brings 1.5")
            tensor.fill_(1.5)
    dist.all_reduce(tensor, group=group)
    return float(tensor.cpu()[-1])


def without_nccl(library: str) -> str:
    """On a rank: how a group communicates whose ranks are as on hosts of their own, and find no NCCL."""
    os.environ["RINGDP_NCCL"] = "/nowhere/libnccl.so"
    gpu, group = arrive(library, "NCCL")
    dist.all_reduce(gpu.put(torch.ones(COUNT)), group=group)
    return described(group)


def test_before(world_of, stand_in):
    assert world_of(2).run(summed, stand_in, "") == [2.0, 2.0]


def test_planted(world_of, run_on_fresh_ranks, stand_in):
    planted = os.environ["PLANTED"]
    if planted == "pytest is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if planted == "pytest hangs":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # as a call of the driver that never returns: no exception ends it
    if planted == "no NCCL":
        world = run_on_fresh_ranks(2, transport="tcp", window_bytes=WINDOW_BYTES)
        world.join()
        [text, _] = world.run(without_nccl, stand_in)
        if "no NCCL" in text:
            pytest.skip(text)
    assert world_of(2).run(summed, stand_in, planted) == [2.0, 2.0]


def test_after(world_of, stand_in):
    assert world_of(2).run(summed, stand_in, "") == [2.0, 2.0]
