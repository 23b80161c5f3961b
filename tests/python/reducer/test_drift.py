"""A flipped bit is found by the next step, on every rank, with rank, bucket, parameter and step; else nothing is."""

from __future__ import annotations

import pytest
import ringdp
import torch
import torch.distributed as dist
from ringdp import _native

_C = _native.load()


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ([5, 5], []),
        ([5, 6], [0, 1]),
        ([5, 6, 5], [1]),
        ([5, 6, 7], [0, 1, 2]),
        ([5, 5, 6, 6], [0, 1, 2, 3]),
        ([5, 5, 5, 6, 7], [3, 4]),
        ([0, 5, 5, 6], [3]),
        ([0, 5, 0], []),
        ([0, 0], []),
    ],
)
def test_the_majority_decides(values, odd):
    assert _C.odd_ranks(values) == odd


def flip(tensor, bit=0):
    tensor.detach().view(-1).view(torch.uint8)[bit // 8] ^= 1 << (bit % 8)


def make(**options):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)])
    options = {"check_drift": True, "bucket_cap_mb": 0.005, **options}
    ddp = ringdp.DistributedDataParallel(model, **options)
    if options.get("zero_stage"):
        return ddp, ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.01)
    return ddp, torch.optim.AdamW(ddp.parameters(), lr=0.01)


def one_step(ddp, optimizer, meddle=lambda: None):
    optimizer.zero_grad()
    ddp(torch.randn(4, 32)).square().mean().backward()
    meddle()
    optimizer.step()


def message_after(place, rank, options):
    """Three good steps, then a bit flips on one rank in `place`; what the step after it says, and its number."""
    ddp, optimizer = make(**options)
    for _ in range(3):
        one_step(ddp, optimizer)
    weight = ddp.module[2].weight
    here = dist.get_rank() == rank
    if place == "gradient":
        one_step(ddp, optimizer, lambda: here and flip(weight.grad, 30))
    elif here:
        flip(weight if place == "parameter" else optimizer.state[weight]["exp_avg"], 30)
    if place == "state":
        one_step(ddp, optimizer)  # which makes the parameter differ
    with pytest.raises(RuntimeError) as error:
        one_step(ddp, optimizer)
    return str(error.value)


@pytest.mark.parametrize(("place", "step"), [("parameter", 4), ("gradient", 5), ("state", 5)])
def test_a_flipped_bit_is_found_by_the_next_step(run_on_fresh_ranks, place, step):
    world = run_on_fresh_ranks(3)
    world.join()
    for message in world.run(message_after, place, 1, {}):
        assert f"at step {step} rank 1 holds other bits than most of 2.weight (bucket " in message


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": True},
        {"overlap": False},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"zero_stage": 1},
        {"zero_stage": 2},
    ],
    ids=lambda options: str(next(iter(options))),
)
def test_it_is_found_in_every_mode(run_on_fresh_ranks, options):
    world = run_on_fresh_ranks(2)
    world.join()
    for message in world.run(message_after, "parameter", 0, options):
        assert "at step 4 ranks 0 and 1 (no majority) hold different bits of 2.weight" in message


def message_of_a_flip_while_others_compute(rank, options):
    """A bit flips on `rank` in what it has given to its first bucket, while the others have not come that far."""
    ddp, optimizer = make(gradient_as_bucket_view=True, **options)
    store = dist.distributed_c10d._get_default_store()
    one_step(ddp, optimizer)  # and buckets are in the order of arrival
    last, first = ddp.module[3].weight, ddp.module[0].weight
    if dist.get_rank() == rank:

        def meddle(_):
            flip(last.grad, 32 * 1000 + 30)  # of the slice that the rank sums itself
            store.set(f"flipped {options}", "")

        first.register_hook(meddle)
    else:
        last.register_hook(lambda _: store.wait([f"flipped {options}"]))
    with pytest.raises(RuntimeError) as error:
        one_step(ddp, optimizer)
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        pytest.param(settings, options, marks=pytest.mark.long if settings and options else ())
        for settings in ({}, {"transport": "tcp"}, {"algorithm": "ring"})
        for options in ({}, {"zero_stage": 1}, {"overlap": True, "static_graph": True})
    ],
    ids=str,
)
def test_a_bit_that_flips_before_the_sum_is_found_in_the_same_step(run_on_fresh_ranks, settings, options):
    world = run_on_fresh_ranks(3, **settings)
    world.join()
    for message in world.run(message_of_a_flip_while_others_compute, 1, options):
        assert "at step 2 the contribution of rank 1 to the gradients of 3." in message
        assert "Do not step: restart from a checkpoint" in message


def message_beside_a_rank_that_has_joined():
    """Rank 2 has no more inputs when a bit flips on rank 0."""
    ddp, optimizer = make()
    with pytest.raises(RuntimeError) as error, ddp.join():
        for step in range(1 if dist.get_rank() == 2 else 4):
            if step == 2 and dist.get_rank() == 0:
                flip(ddp.module[2].weight, 30)
            one_step(ddp, optimizer)
    return str(error.value)


def test_who_has_joined_has_no_vote(run_on_fresh_ranks):
    world = run_on_fresh_ranks(3)
    world.join()
    for message in world.run(message_beside_a_rank_that_has_joined)[:2]:
        assert "ranks 0 and 1 (no majority) hold different bits of 2.weight" in message


def trains_without_a_word(steps):
    """Modes in which ranks do different things, and parameters are equal all the same."""
    ddp, optimizer = make()
    for _ in range(steps):
        with ddp.no_sync():
            ddp(torch.randn(2, 32)).sum().backward()
        one_step(ddp, optimizer)
    with ddp.join():
        for _ in range(3 + dist.get_rank()):
            one_step(ddp, optimizer)
    channels_last = torch.nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    convolution = ringdp.DistributedDataParallel(channels_last, check_drift=True)
    for _ in range(2):
        convolution(torch.randn(2, 4, 8, 8)).sum().backward()
    return float(sum(p.double().sum() for p in ddp.parameters()))


def test_equal_ranks_are_never_odd(pair):
    trains = pair.run(trains_without_a_word, 4)
    assert len(trains) == 2


class Twist(torch.nn.Module):
    """Complex parameters, and as many 16-bit ones."""

    def __init__(self):
        super().__init__()
        self.complex = torch.nn.Parameter(torch.randn(33, dtype=torch.complex64))
        self.short = torch.nn.Parameter(torch.randn(1001, dtype=torch.bfloat16))

    def forward(self, x):
        return (self.complex * x).abs().sum() + (self.short * x).sum().float()


def sums_without_a_word():
    """On a rank: sums of every kind of dtype, large and small."""
    for model in (Twist(), torch.nn.Linear(300, 300), torch.nn.Linear(2, 2)):
        ddp = ringdp.DistributedDataParallel(model, check_drift=True)
        for _ in range(2):
            given = (
                torch.tensor(0.3 + dist.get_rank()) if isinstance(model, Twist) else torch.randn(2, model.in_features)
            )
            ddp(given).sum().backward()


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "ring"},
        {"order": "rotated"},
        {"algorithm": "tree", "transport": "tcp"},
        {"algorithm": "server"},
        {"algorithm": "exchange"},
        {"wire": "bf16", "transport": "tcp"},
        {"heap_bytes": 0},
    ],
    ids=str,
)
def test_sums_of_every_algorithm_are_those_of_what_was_given(run_on_fresh_ranks, settings):
    world = run_on_fresh_ranks(3, **settings)
    world.join()
    world.run(sums_without_a_word)


def refuses():
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(RuntimeError, match=r"check_drift=True needs .*a group of backend ringdp.*check_replicas"):
        make(process_group=gloo)
    with pytest.raises(ValueError, match="check_drift=True with zero_stage=3"):
        make(zero_stage=3)


def test_where_nothing_carries_checksums_it_is_refused(pair):
    pair.run(refuses)


def losses(check):
    torch.manual_seed(dist.get_rank())
    ddp, optimizer = make(check_drift=check)
    for _ in range(3):
        one_step(ddp, optimizer)
    return [p.detach().clone() for p in ddp.parameters()]


def test_it_changes_no_bit(pair):
    for checked, plain in zip(pair.run(losses, True), pair.run(losses, False), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(checked, plain, strict=True))
