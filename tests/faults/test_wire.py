"""What travels between ranks is damaged: bytes that change on live connections, flipped bits, strangers at the ports.

No rank gets a wrong number and none waits beyond the deadline; check_drift names a flipped bit or it has no effect;
strangers cause neither harm nor growth, neither while the ranks meet nor while they train.
"""

from __future__ import annotations

import hashlib
import random
import struct
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest
import ringdp
import torch
import torch.distributed as dist
from calls import KNOWN, Before, broadcast, gathered, moved, reduced, scattered, sent
from ranks import HERE, World, job_store
from torch import nn
from torch.distributed import distributed_c10d
from wire import (
    BULK,
    HALF_OPEN,
    Change,
    FlipIn,
    LedAstray,
    Strangers,
    Tampering,
    Traffic,
    knock,
    open_files,
    other_listeners,
    resident_kib,
    tcp_listeners,
    tcp_ports,
)

TIMEOUT_S = 4.0

# Lives in `make test`, and in each of the tests of `make test-all`, which share the processors.
FEW_LIVES, MANY_LIVES = 12, 250
HARMLESS = {"right", "named", "not met", "not together"}


def live(prefix: str, ports: dict[int, int]) -> float:
    """On a rank: a new group through these ports, and calls of many kinds whose results are known.

    Raises what a call raises, AssertionError on a wrong number. The seconds that the longest call took.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    distributed_c10d._world.group_count = 0  # names the group alike on all ranks, also after one has failed to make it
    store = dist.PrefixStore(prefix, job_store())
    timeout = timedelta(seconds=TIMEOUT_S)
    led_astray = LedAstray(store, ports)
    dist.init_process_group("ringdp", store=led_astray, rank=HERE.rank, world_size=HERE.size, timeout=timeout)
    longest = 0.0
    for call in (reduced, gathered, moved, scattered, sent, broadcast):
        for elements in (3, 2500):
            begin = time.monotonic()
            try:
                call(elements)
            finally:
                longest = max(longest, time.monotonic() - begin)
                _longest[0] = longest
    dist.destroy_process_group()
    return longest


_longest = [0.0]  # the longest call of this rank's latest life


def longest_call() -> float:
    """On a rank: of its latest life."""
    return _longest[0]


def verdict_of_life(man: Tampering, change: Change) -> str:
    """One life of all ranks with this change: "right", "named", "not met", "not together", or what is wrong.

    "not together": the ranks ended in errors before the change came; those are printed.
    """
    prefix = man.begin_life(change)
    outcomes = man.world.attempt(live, prefix, man.ports, within=6 * TIMEOUT_S)
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if max(man.world.run(longest_call)) > 2 * TIMEOUT_S:
        return f"waited beyond the deadline: {errors}"
    for error in errors:
        kind = error.removeprefix("DistBackendError: ").split(":")[0]
        if kind not in KNOWN:
            return error
    if man.applied:
        return "named" if errors else "right"
    if not man.is_at_work():
        return "the man in the middle has ended"
    if errors:
        print(f"{change} had not come: {errors}")
    return "not together" if errors else "not met"


def lives(ranks: int, count: int, first_seed: int = 0) -> Counter[str]:
    """How many lives came to which verdict; a bad one is printed with its change, which its seed repeats."""
    counts: Counter[str] = Counter()
    with World(ranks, transport="tcp") as world, Tampering(world) as man:
        world.run(live, man.begin_life(None), man.ports)
        traffic = man.traffic()
        for seed in range(first_seed, first_seed + count):
            change = Change.drawn(seed, traffic)
            found = verdict_of_life(man, change)
            counts[found] += 1
            if found not in HARMLESS:
                print(f"{change}: {found}")
    return counts


def is_never_silent(counts: Counter[str]) -> bool:
    """Half of the changes were named, and nothing is wrong; a busy machine may keep a few worlds apart."""
    lives = counts.total()
    return counts["named"] >= lives // 2 and set(counts) <= HARMLESS and counts["not together"] <= max(1, lives // 100)


def test_a_change_on_the_wire_is_never_silent():
    counts = lives(2, FEW_LIVES)
    assert is_never_silent(counts), counts


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(0, 1000, MANY_LIVES))
def test_a_thousand_changes(first_seed):
    counts = lives(4, MANY_LIVES, first_seed)
    print(dict(counts))
    assert is_never_silent(counts), counts


STEPS = 3
STAGES = (0, 1, 2)
BY_NAME = (
    "RuntimeError: D",
    *(f"RuntimeError: [{rank}]: params[" for rank in range(4)),  # torch's own comparison of models
    *(f"DistBackendError: {kind}" for kind in KNOWN),
)

# Flips in `make test`, and in `make test-all`.
FEW_FLIPS, MANY_FLIPS = 12, 200


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


def meet_through_the_man(prefix: str, ports: dict[int, int], **options: str) -> None:
    """On a rank: joins a new group through these ports."""
    if dist.is_initialized():
        dist.destroy_process_group()
    store = LedAstray(dist.PrefixStore(prefix, job_store()), ports)
    place = {"store": store, "rank": HERE.rank, "world_size": HERE.size}
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("ringdp", **place, timeout=timeout, pg_options=ringdp.Options(**options))


def through_the_man(prefix: str, ports: dict[int, int], stage: int) -> str:
    """On a rank: trained in a new group through these ports."""
    meet_through_the_man(prefix, ports)
    bits = trained(dist.group.WORLD, stage)
    dist.destroy_process_group()
    return bits


class Known(nn.Module):
    """Its gradient is this rank's number, counted from 1, in every element."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


def step_of_known_mean(prefix: str, ports: dict[int, int], stage: int, options: dict[str, str]) -> list[float]:
    """On a rank: the different values of the parameter after one step with lr=1."""
    meet_through_the_man(prefix, ports, **options)
    ddp = ringdp.DistributedDataParallel(Known(), check_drift=True, zero_stage=stage)
    optimizer = (
        ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=1.0)
        if stage
        else torch.optim.SGD(ddp.parameters(), lr=1.0)
    )
    ddp(torch.tensor(HERE.rank + 1.0)).backward()
    optimizer.step()
    values = ddp.module.weight.detach().unique().tolist()
    dist.destroy_process_group()
    return values


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


def verdict_of_flip(outcomes: list, right: str) -> str:
    """'named' by all ranks that report an error, 'right', or what is wrong."""
    errors = [outcome.error for outcome in outcomes if outcome.error]
    for error in errors:
        if not error.startswith(BY_NAME):
            return error
    if errors:
        return "named"
    same = {outcome.value for outcome in outcomes} == {right}
    return "right" if same else "SILENT: other bits than without the flip"


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
            found = verdict_of_flip(outcomes, right) if man.applied else "not met"
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
            found = verdict_of_flip(world.attempt(flip_in_memory, seed, stage), right[stage])
            counts[found] += 1
            if found not in ("right", "named"):
                print(f"seed {seed}, stage {stage}: {found}")
    return counts


def test_a_bit_that_flips_on_the_wire_is_named():
    counts = flips_on_the_wire(2, FEW_FLIPS)
    assert counts["named"] >= FEW_FLIPS // 2 and set(counts) <= {"right", "named", "not met"}, counts


@pytest.fixture(scope="module")
def flip_in() -> Iterator[FlipIn]:
    """Between two ranks without CRCs."""
    with World(2, transport="tcp", check="off") as world, FlipIn(world) as man:
        yield man


def test_a_mean_that_changes_on_its_way_is_named(flip_in):
    """Also one that only rank 0 steps: at stage 1, and at stage 2 where another rank has summed it."""
    mean = struct.pack("<16f", *[1.5] * 16)
    for stage, options, to in (
        (0, {"algorithm": "direct"}, "rank 0: "),
        (1, {"algorithm": "direct"}, "rank 0: "),  # in the middle are elements that rank 1 sums and rank 0 steps
        (1, {"algorithm": "ring"}, "rank 0: "),
        (2, {"algorithm": "ring"}, "the rank that steps it: "),
        (2, {"algorithm": "direct"}, None),  # each rank sums what it steps
    ):
        prefix = flip_in.begin_life_with(mean, upwards=False)
        outcomes = flip_in.world.attempt(step_of_known_mean, prefix, flip_in.ports, stage, options)
        if to is None:
            assert not flip_in.applied and [outcome.value for outcome in outcomes] == [[-1.5]] * 2
            continue
        assert flip_in.applied
        wanted = (
            "at step 1 the mean of the gradients of weight (bucket 0) changed on its way from the rank that summed it"
        )
        for outcome in outcomes:
            assert f"{wanted} to {to}" in (outcome.error or str(outcome.value)), (stage, options)


def layout_after_a_step(prefix: str, ports: dict[int, int]) -> list[list[int]]:
    """On a rank: the layout of buckets that rank 0 has broadcast after the first step."""
    meet_through_the_man(prefix, ports)
    ddp = ringdp.DistributedDataParallel(model_of_these(2), bucket_cap_mb=0.0005)
    for _ in range(2):
        ddp(torch.ones(1, 16)).sum().backward()
    dist.destroy_process_group()
    return ddp.reducer.layout()


def test_a_layout_that_changes_on_its_way_is_named(flip_in):
    prefix = flip_in.begin_life_with(b"", upwards=True)
    layout = flip_in.world.run(layout_after_a_step, prefix, flip_in.ports)[0]
    pairs = [(index, bucket) for bucket, members in enumerate(layout) for index in members]
    sent = struct.pack(f"<{2 * len(pairs)}q", *[number for pair in pairs for number in pair])
    prefix = flip_in.begin_life_with(sent, upwards=True)
    outcomes = flip_in.world.attempt(layout_after_a_step, prefix, flip_in.ports)
    assert flip_in.applied
    assert "the layout of buckets that rank 0 has sent changed on its way here" in outcomes[1].error
    assert outcomes[0].error  # rank 1 has left


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_bit_that_flips_in_a_bucket_is_named(transport):
    counts = flips_in_memory(2, FEW_FLIPS, transport)
    assert counts["named"] >= FEW_FLIPS // 2 and set(counts) <= {"right", "named"}, counts


@pytest.mark.long
def test_two_hundred_flips():
    counts = flips_on_the_wire(4, MANY_FLIPS // 2)
    for transport in ("shm", "tcp"):
        counts += flips_in_memory(4, MANY_FLIPS // 4, transport)
    print(dict(counts))
    assert counts["named"] >= MANY_FLIPS // 2 and set(counts) <= {"right", "named", "not met"}, counts


SUM_STEPS = 200
GROWTH_KIB = 8192


class SlowToCall(Before):
    """A store that holds this rank back for a while once the others have said where they listen."""

    def __init__(self, store: dist.Store, seconds: float) -> None:
        super().__init__(store)
        self.seconds = seconds

    def check(self, keys: list[str]) -> bool:
        if any("/address/" in key for key in keys) and self.seconds:
            time.sleep(self.seconds)
            self.seconds = 0
        return super().check(keys)


def join_slowly(slow_rank: int, seconds: float) -> None:
    """On a rank: init_process_group, the slow rank calling late."""
    store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False)
    if HERE.rank == slow_rank:
        store = SlowToCall(store, seconds)
    dist.init_process_group("ringdp", store=store, rank=HERE.rank, world_size=HERE.size, timeout=timedelta(seconds=60))


def train(steps: int) -> float:
    """On a rank: steps whose sums are known exactly."""
    total = torch.zeros(5000, dtype=torch.float64)
    for step in range(steps):
        gradient = torch.full((5000,), float(step * (HERE.rank + 1)))
        dist.all_reduce(gradient)
        total += gradient
    assert torch.equal(total, total[:1].expand(5000))
    return float(total[0])


def wanted(ranks: int, steps: int) -> float:
    return float(sum(range(steps)) * sum(range(1, ranks + 1)))


@pytest.fixture
def world_over_tcp() -> Iterator[World]:
    with World(3, transport="tcp") as world:
        world.join()
        yield world


def footprint(world: World) -> list[tuple[int, int]]:
    pids = [world.pid(rank) for rank in range(world.size)]
    return [(open_files(pid), resident_kib(pid)) for pid in pids]


def test_nobody_listens_once_the_ranks_have_met(make_world):
    world = make_world()
    world.run(train, 2)
    for rank in range(world.size):
        assert tcp_listeners(world.pid(rank)) == []
        assert other_listeners(world.pid(rank)) == []


def test_strangers_while_the_ranks_meet():
    """Three ranks listen for the fourth when garbage, giant lengths and 200 silent connections come."""
    with World(4, transport="tcp") as world:
        pids = [world.pid(rank) for rank in range(4)]
        with Strangers(pids) as strangers:
            world.begin(join_slowly, 3, 1.5)
            world.finish()
            assert world.run(train, SUM_STEPS) == [wanted(4, SUM_STEPS)] * 4
        assert len(strangers.seen) >= 3, "ranks 0, 1 and 2 listened"
        assert strangers.knocks > 10 * len(strangers.seen)
        assert all(open_files(pid) < 60 for pid in pids), "none of the strangers' connections is kept"
        for host, port in strangers.seen:
            assert host == "127.0.0.1", "nothing but the chosen interface"
            with pytest.raises(ConnectionRefusedError):
                knock((host, port))


def test_strangers_at_every_meeting_leave_no_trace():
    """Ranks that meet again and again under attack keep neither memory nor descriptors."""
    with World(3, transport="tcp") as world:
        pids = [world.pid(rank) for rank in range(3)]
        with Strangers(pids) as strangers:
            for meeting in range(5):
                world.run(join_slowly, 2, 0.3)
                assert world.run(train, 10) == [wanted(3, 10)] * 3
                world.leave()
                if meeting == 1:
                    before = footprint(world)
        assert len(strangers.seen) >= 5
        check_flat(before, footprint(world))


def test_strangers_while_the_ranks_train(world_over_tcp):
    """No port of theirs takes a connection; the sums stay right."""
    world = world_over_tcp
    world.run(train, 5)
    before = footprint(world)
    world.begin(train, 20 * SUM_STEPS)
    ports = {port for rank in range(3) for port in tcp_ports(world.pid(rank))}
    refused = sum(is_refused(port) for port in ports for _ in range(HALF_OPEN))
    assert [outcome.value for outcome in world.finish()] == [wanted(3, 20 * SUM_STEPS)] * 3
    # A control, a bulk and a message connection per pair; those that a rank accepted share a port: 1 + (3 + 1) + 6.
    assert len(ports) == 11
    assert refused == HALF_OPEN * len(ports)
    check_flat(before, footprint(world))


def is_refused(port: int) -> bool:
    try:
        with knock(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"garbage")
    except ConnectionRefusedError:
        return True
    return False


def check_flat(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
    for (files_before, memory_before), (files, memory) in zip(before, after, strict=True):
        assert files <= files_before
        assert memory < memory_before + GROWTH_KIB
