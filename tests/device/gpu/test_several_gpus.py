"""Ranks with a GPU each: kernels that poll (SPIN), devices other than the first, contexts, and NCCL with wire types."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from datetime import timedelta

import one_gpu as gpu
import pytest
import ringdp
import torch
import torch.distributed as dist
from oracle import bytes_of, values
from ranks import HERE, World
from stand_in import BACKEND, here

gpu.require()
gpu.require_several(2)
from test_collectives import moved, reduced

RANKS = 2
SIZES = [1, 4099, 300_001]
APART = {"transport": "tcp", "window_bytes": 16 << 20}  # as on hosts of their own, which NCCL connects
WIRES = ["bf16", "fp16", "fp8", "int8"]
IN_TIME_S = 3.0


def wrong_on(device: str) -> tuple[str, list[str]]:
    """On a rank: how the backend says it communicates, and what was wrong on this device."""
    wrong = reduced(device, torch.float32, SIZES) + reduced(device, torch.bfloat16, SIZES)
    return gpu.described(), wrong + moved(device, torch.float32, 4099)


def exchanged(first: int) -> tuple[str, list[str]]:
    """On a rank: the same on the current device, the ranks' from `first` on."""
    return wrong_on(gpu.use((HERE.rank + first) % RANKS))


def join() -> None:
    """On a rank: makes the default group and no context."""
    store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False, timeout=timedelta(seconds=30))
    dist.init_process_group("ringdp", store=store, rank=HERE.rank, world_size=HERE.size)


def without_a_current_device() -> tuple[str, list[str], set[str]]:
    """On a rank that sets none, on the device after its own: also the devices where it has a context."""
    join()
    index = (HERE.rank + 1) % RANKS
    text, wrong = wrong_on(gpu.device_at(index))
    return text, wrong, contexts()


def contexts() -> set[str]:
    """Of this process, by index or identity; none where nobody says."""
    if gpu.STAND_IN:
        return {str(index) for index in here(gpu.STAND_IN).contexts()}
    query = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, timeout=10).stdout if shutil.which(query[0]) else ""
    rows = [line.split(", ") for line in said.splitlines()]
    return {uuid for pid, uuid in (row for row in rows if len(row) == 2) if pid == str(os.getpid())}


def alone_with_a_gpu() -> tuple[str, list[str]]:
    """On a rank that sees no GPU but its own, the first one here."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7").split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = seen[HERE.rank]
    join()
    return wrong_on(gpu.use(0))


def encoded() -> tuple[str, list[str]]:
    """On a rank: sums whose bits on the device are not those on the CPU, by wire type."""
    device, wrong = gpu.use(HERE.rank), []
    for wire in WIRES:
        backend = {"backend": BACKEND} if gpu.STAND_IN else {}
        group = dist.new_group(range(HERE.size), pg_options=ringdp.Options(wire=wire), **backend)
        for dtype in (torch.float32, torch.bfloat16):
            for count in (255, 1031, 300_001):
                own = values(f"{wire} {dtype}", HERE.rank, count, dtype)
                there = own.to(device)
                for tensor in (own, there):
                    dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=group)
                if bytes_of(there.cpu()) != bytes_of(own):
                    wrong.append(f"{wire}: {count} {dtype}")
        dist.destroy_process_group(group)
    dist.all_reduce(torch.ones(4, device=device), group=gpu.group())
    return gpu.described(), wrong


def repeat(times: int) -> None:
    """On a rank: sums on the device, each read back, as many on all ranks, or until one fails."""
    tensor = torch.ones(1 << 18, device=gpu.use(HERE.rank))
    for _ in range(times):
        dist.all_reduce(tensor.fill_(1.0), group=gpu.group())
        float(tensor.cpu()[-1])


def computes() -> float:
    """On a survivor: what its device still computes."""
    return float((torch.ones(1000, device=gpu.device_at(HERE.rank)) * 2).sum().cpu())


def joined(world: World) -> World:
    world.join()
    return world


@pytest.mark.parametrize("first", [0, 1])
def test_kernels_of_processes_on_gpus_of_their_own(run_on_fresh_ranks, first):
    for text, wrong in joined(run_on_fresh_ranks(RANKS)).run(exchanged, first):
        assert ": SPIN: every rank has a device of its own" in text and wrong == []


def test_a_process_has_a_context_on_the_gpu_of_its_tensors_alone(run_on_fresh_ranks):
    outcomes = run_on_fresh_ranks(RANKS).run(without_a_current_device)
    for text, wrong, _ in outcomes:
        assert ": SPIN: " in text and wrong == []
    found = [its for *_, its in outcomes]
    if not all(found):
        pytest.skip("nvidia-smi does not show the processes of this container")
    assert [len(its) for its in found] == [1] * RANKS and len(set.union(*found)) == RANKS, found


def test_processes_that_see_one_gpu_each(run_on_fresh_ranks):
    if gpu.STAND_IN:
        pytest.skip("emulated devices are not hidden by CUDA_VISIBLE_DEVICES")
    for text, wrong in run_on_fresh_ranks(RANKS).run(alone_with_a_gpu):
        assert ": SPIN: every rank has a device of its own" in text and wrong == []


def test_wire_types_over_nccl_have_the_bits_of_the_cpu(run_on_fresh_ranks):
    for text, wrong in joined(run_on_fresh_ranks(RANKS, **APART)).run(encoded):
        if "no NCCL" in text:
            pytest.skip(text)
        assert ": NCCL " in text and wrong == []


def test_a_killed_rank_over_nccl_is_named_and_the_context_survives(run_on_fresh_ranks):
    world = joined(run_on_fresh_ranks(RANKS, **APART))
    world.run(repeat, 20)
    world.begin(repeat, 1_000_000)
    time.sleep(0.5)
    killed = world.kill(1)
    [outcome] = world.finish([0])
    assert "PeerLost: " in outcome.error and f"rank 1 (pid {world.pid(1)} on " in outcome.error
    assert outcome.ended - killed < IN_TIME_S, f"rank 0 was told after {outcome.ended - killed:.2f} s"
    assert world.run(computes, ranks=[0]) == [2000.0]
