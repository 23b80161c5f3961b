"""Training with check_drift, and one bit that flips on the wire or in memory: named, or without effect."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from datetime import timedelta

import pytest
import ringdp
import torch
import torch.distributed as dist
from calls import KNOWN
from ranks import HERE, World, job_store
from tampering import BULK, Change, LedAstray, Tampering, Traffic
from torch import nn

TIMEOUT_S = 4.0
STEPS = 3
STAGES = (0, 1, 2)
BY_NAME = ("RuntimeError: D", *(f"DistBackendError: {kind}" for kind in KNOWN))  # DistributedDataParallel: or DDP

# Flips in `make test`, and in `make test-all`.
FEW, MANY = 12, 200


def model_of_these(ranks: int) -> nn.Module:
    torch.manual_seed(ranks)
    return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 8))


def trained(group: dist.ProcessGroup, stage: int, meddle=lambda ddp, step: None) -> str:
    """On a rank: the bits of its parameters after some steps and one more look at all replicas."""
    options = {"check_drift": True, "bucket_cap_mb": 0.0005, "process_group": group, "zero_stage": stage}
    ddp = ringdp.DistributedDataParallel(model_of_these(HERE.size), gradient_as_bucket_view=stage < 2, **options)
    if stage:
        optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.1)
    else:
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.1)
    torch.manual_seed(100 + HERE.rank)
    for step in range(STEPS):
        meddle(ddp, step)
        optimizer.zero_grad()
        ddp(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
    if not ringdp.check_replicas(ddp.module, group=group):  # as the next step would have found
        raise RuntimeError("DistributedDataParallel: replicas differ")
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in ddp.parameters())).hexdigest()


def through_the_man(prefix: str, ports: dict[int, int], stage: int) -> str:
    """On a rank: trained in a new group through these ports."""
    if dist.is_initialized():
        dist.destroy_process_group()
    store = LedAstray(dist.PrefixStore(prefix, job_store()), ports)
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("ringdp", store=store, rank=HERE.rank, world_size=HERE.size, timeout=timeout)
    bits = trained(dist.group.WORLD, stage)
    dist.destroy_process_group()
    return bits


def flip_in_memory(seed: int, stage: int) -> str:
    """On a rank: trained, while a bit of a bucket flips on one rank before the others come to it; seed -1: none."""
    draw = random.Random(seed)
    victim, at, layer = draw.randrange(HERE.size), draw.randrange(STEPS), draw.choice((2, 4))
    place, bit = draw.random(), draw.randrange(8)
    flipped = f"flipped {seed} {stage}"

    def flip(parameter: nn.Parameter) -> None:
        gradient = parameter.grad.view(-1).view(torch.uint8)
        gradient[int(place * gradient.numel())] ^= 1 << bit
        store.set(flipped, "")

    def meddle(ddp: nn.Module, step: int) -> None:
        while handles:
            handles.pop().remove()
        if seed < 0 or step != at:
            return
        later, earlier = ddp.module[layer].weight, ddp.module[layer - 2].weight
        if HERE.rank == victim:
            handles.append(earlier.register_hook(lambda _: flip(later)))
        else:
            handles.append(later.register_hook(lambda _: store.wait([flipped])))

    store, handles = job_store(), []
    return trained(dist.group.WORLD, stage, meddle)


def verdict(outcomes: list, right: str) -> str:
    """ "named" by all who say anything, "right", or what is wrong."""
    errors = [outcome.error for outcome in outcomes if outcome.error]
    for error in errors:
        if not error.startswith(BY_NAME):
            return error
    if errors:
        return "named"
    return "right" if {outcome.value for outcome in outcomes} == {right} else "SILENT: other bits than without the flip"


def flips_on_the_wire(ranks: int, count: int, first_seed: int = 0) -> Counter[str]:
    """Without CRCs: what check_drift sees by itself."""
    counts: Counter[str] = Counter()
    with World(ranks, transport="tcp", check="off") as world, Tampering(world) as man:
        clean: dict[int, tuple[str, Traffic]] = {}
        for stage in STAGES:
            bits = world.run(through_the_man, man.begin_life(None), man.ports, stage)
            clean[stage] = bits[0], man.traffic()
        for seed in range(first_seed, first_seed + count):
            stage = STAGES[seed % len(STAGES)]
            right, traffic = clean[stage]
            change = Change.drawn(seed, traffic, ("bit",), {BULK: 1})
            prefix = man.begin_life(change)
            outcomes = world.attempt(through_the_man, prefix, man.ports, stage, within=20 * TIMEOUT_S)
            found = verdict(outcomes, right) if man.applied else "not met"
            counts[found] += 1
            if found not in ("right", "named", "not met"):
                print(f"stage {stage}, {change}: {found}")
    return counts


def flips_in_memory(ranks: int, count: int, transport: str, first_seed: int = 0) -> Counter[str]:
    counts: Counter[str] = Counter()
    with World(ranks, transport=transport) as world:
        world.join()
        right = {stage: world.run(flip_in_memory, -1, stage)[0] for stage in (0, 1)}
        for seed in range(first_seed, first_seed + count):
            stage = seed % 2
            found = verdict(world.attempt(flip_in_memory, seed, stage), right[stage])
            counts[found] += 1
            if found not in ("right", "named"):
                print(f"seed {seed}, stage {stage}: {found}")
    return counts


def test_a_bit_that_flips_on_the_wire_is_named():
    counts = flips_on_the_wire(2, FEW)
    assert counts["named"] >= FEW // 2 and set(counts) <= {"right", "named", "not met"}, counts


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_bit_that_flips_in_a_bucket_is_named(transport):
    counts = flips_in_memory(2, FEW, transport)
    assert counts["named"] >= FEW // 2 and set(counts) <= {"right", "named"}, counts


@pytest.mark.long
def test_two_hundred_flips():
    counts = flips_on_the_wire(4, MANY // 2)
    for transport in ("shm", "tcp"):
        counts += flips_in_memory(4, MANY // 4, transport)
    print(dict(counts))
    assert counts["named"] >= MANY // 2 and set(counts) <= {"right", "named", "not met"}, counts
