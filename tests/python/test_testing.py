"""one_process against a loop written by hand and stock DDP over gloo; parameters_hash against changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.compress.codec import NAMES
from ringdp.ddp.wrapper import DistributedDataParallel as Exact
from ringdp.elastic import leaf
from ringdp.testing import one_process, one_process_local, parameters_hash
from torch import Tensor, nn
from torch import multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 5
SEEDS = [11, 12, 13]


class Branching(nn.Module):
    """Dropout, batch norm, one layer that only even ranks use and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.sometimes, self.never = nn.Linear(16, 16), nn.Linear(16, 16)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor, branch: bool) -> Tensor:
        h = self.dropout(torch.tanh(self.norm(self.first(x))))
        return self.last(self.sometimes(h) if branch else h)


def make(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = Branching().to(dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss_of(model: nn.Module, rank: int, step: int, micro: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + micro)
    dtype = next(model.parameters()).dtype
    x = torch.randn(5, 6, generator=generator).to(dtype)
    return model(x, branch=rank % 2 == 0).square().mean()


def by_hand(ranks: int, steps: int, loss_of: Callable[..., Tensor] = loss_of) -> nn.Module:
    """fp32, no dropout, no accumulation: the definition written out."""
    model, optimizer = make()
    model.dropout.p = 0.0
    for step in range(steps):
        grads: dict[str, Tensor] = {}
        for rank in range(ranks):
            model.zero_grad()
            loss_of(model, rank, step, 0).backward()
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    grads[name] = grads[name] + parameter.grad if name in grads else parameter.grad.clone()
        for name, parameter in model.named_parameters():
            parameter.grad = grads[name] / ranks if name in grads else None
        optimizer.step()
    return model


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_equals_the_loop_written_by_hand(ranks):
    model, optimizer = make()
    model.dropout.p = 0.0
    one_process(model, optimizer, loss_of, ranks=ranks, steps=STEPS)
    assert parameters_hash(model) == parameters_hash(by_hand(ranks, STEPS))


def test_another_order_of_the_ranks_has_other_bits():
    reverse = by_hand(3, STEPS, lambda model, rank, step, micro: loss_of(model, 2 - rank, step, micro))
    model, optimizer = make()
    model.dropout.p = 0.0
    one_process(model, optimizer, lambda m, r, s, k: loss_of(m, r, s, k), ranks=3, steps=STEPS)
    assert parameters_hash(model) != parameters_hash(reverse)


def test_unused_parameters_have_no_gradient_and_do_not_move():
    model, optimizer = make()
    before = model.never.weight.clone()
    one_process(model, optimizer, loss_of, ranks=2, steps=2)
    assert model.never.weight.grad is None
    assert model.sometimes.weight.grad is not None
    assert torch.equal(model.never.weight, before)


def test_buffers_are_those_of_rank_zero_alone():
    model, optimizer = make()
    lonely = copy.deepcopy(model)
    one_process(model, optimizer, loss_of, ranks=3, steps=1)
    loss_of(lonely, 0, 0, 0)
    assert torch.equal(model.norm.running_mean, lonely.norm.running_mean)
    assert int(model.norm.num_batches_tracked) == 1


def test_sixteen_bit_gradients_are_folded_wide_and_rounded_once():
    shares = [1.0, 2**-9, 2**-9, 2**-9]
    weight = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    model = nn.ParameterList([weight])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    one_process(model, optimizer, lambda m, r, s, k: (m[0] * shares[r]).sum(), ranks=4, steps=1)
    wide = (torch.tensor(sum(shares)) / 4).to(torch.bfloat16)
    narrow = torch.tensor(1.0, dtype=torch.bfloat16) / 4
    assert wide != narrow, "the shares must tell the two apart"
    assert torch.equal(weight.grad, wide.expand(4))


def test_dividing_first_and_once_differ_at_three_ranks():
    hashes = set()
    for divide in ("once", "first"):
        model, optimizer = make()
        one_process(model, optimizer, loss_of, ranks=3, steps=STEPS, divide=divide, seeds=SEEDS)
        hashes.add(parameters_hash(model))
    assert len(hashes) == 2


@pytest.mark.parametrize("divide", ["once", "first"])
def test_weights_give_the_mean_over_all_samples(divide):
    x = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = [x[:5], x[5:]]
    model = nn.Linear(4, 1).double()
    whole = copy.deepcopy(model)
    losses = one_process(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda m, r, s, k: m(parts[r]).square().sum(),
        ranks=2,
        steps=1,
        weights=lambda rank, step: len(parts[rank]),
        divide=divide,
    )
    loss = whole(x).square().mean()
    loss.backward()
    assert losses == pytest.approx([loss.item()], rel=1e-12)
    assert torch.allclose(model.weight.grad, whole.weight.grad, rtol=1e-12, atol=0)


def test_sync_each_adds_the_means_of_every_micro_batch():
    gradients = [[0.1, 0.2], [0.3, 0.7]]
    grad = {}
    for sync_each in (False, True):
        model = nn.ParameterList([nn.Parameter(torch.zeros(1))])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        one_process(
            model,
            optimizer,
            lambda m, r, s, k: (m[0] * gradients[r][k]).sum(),
            ranks=2,
            steps=1,
            accumulate=2,
            sync_each=sync_each,
        )
        grad[sync_each] = model[0].grad
    g = torch.tensor(gradients)
    assert torch.equal(grad[False], ((g[0, 0] + g[0, 1]) + (g[1, 0] + g[1, 1])).div(2).reshape(1))
    assert torch.equal(grad[True], ((g[0, 0] + g[1, 0]).div(2) + (g[0, 1] + g[1, 1]).div(2)).reshape(1))


def test_the_callers_rng_and_threads_are_left_as_they_were():
    torch.set_num_threads(2)
    model, optimizer = make()
    state = torch.get_rng_state()
    seen = []
    one_process(
        model,
        optimizer,
        loss_of,
        ranks=2,
        steps=2,
        on_gradients=lambda step: seen.append(torch.get_num_threads()),
    )
    assert seen == [1, 1]
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (dict(ranks=0), "ranks=0"),
        (dict(steps=-1), "steps=-1"),
        (dict(accumulate=0), "accumulate=0"),
        (dict(divide="twice"), "'twice'"),
        (dict(seeds=[1]), "1 seed for 2"),
        (dict(weights=lambda r, s: 0), "sum up to 0"),
    ],
)
def test_bad_arguments_are_named(bad, named):
    model, optimizer = make()
    with pytest.raises(ValueError, match=named):
        one_process(model, optimizer, loss_of, **{"ranks": 2, "steps": 1, **bad})


def test_sparse_gradients_are_refused_by_name():
    model = nn.Embedding(4, 2, sparse=True)
    with pytest.raises(ValueError, match="weight is sparse"):
        one_process(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            lambda m, r, s, k: m(torch.tensor([r])).sum(),
            ranks=2,
            steps=1,
        )


@pytest.mark.parametrize("change", ["bit", "dtype", "shape", "name"])
def test_the_hash_sees_every_change(change):
    model = nn.Linear(4, 2)
    before = parameters_hash(model)
    assert parameters_hash(copy.deepcopy(model)) == before
    if change == "bit":
        model.weight.data.view(torch.int32)[0, 0] ^= 1
    elif change == "dtype":
        model.weight.data = model.weight.data.view(torch.int32).view(torch.float32).to(torch.float64)
    elif change == "shape":
        model.weight.data = model.weight.data.reshape(2, 4).reshape(4, 2)
    else:
        model = nn.Sequential(model)
    assert parameters_hash(model) != before


def ddp_rank(rank: int, store: str, dtype: torch.dtype, accumulate: int, seeds: list[int], results) -> None:
    """One of two ranks of stock DDP over gloo; its hash goes to `results`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model, optimizer = make(dtype)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    torch.manual_seed(seeds[rank])
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(accumulate):
            with nullcontext() if micro == accumulate - 1 else ddp.no_sync():
                loss_of(ddp, rank, step, micro).backward()
        optimizer.step()
    results.put(parameters_hash(ddp))
    dist.barrier()  # leave together: a rank still in its last collective must not lose its peer
    del ddp  # whose reducer would free gloo's group with the GIL, for which gloo's thread may be waiting
    dist.destroy_process_group()


def stock_ddp(store: str, dtype: torch.dtype, accumulate: int, seeds: list[int]) -> set[str]:
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    mp.spawn(ddp_rank, (store, dtype, accumulate, seeds, results), nprocs=2)
    return {results.get(), results.get()}


@pytest.mark.parametrize(
    ("dtype", "accumulate"),
    [
        (torch.float32, 3),
        pytest.param(torch.float32, 1, marks=pytest.mark.long),
        pytest.param(torch.bfloat16, 1, marks=pytest.mark.long),
    ],
)
def test_equals_stock_ddp_over_gloo_at_two_ranks(tmp_path, dtype, accumulate):
    """At two ranks there is only one order, so gloo's sums are the reference's; unused layers too."""

    def reference(seeds: list[int]) -> str:
        model, optimizer = make(dtype)
        one_process(
            model,
            optimizer,
            loss_of,
            ranks=2,
            steps=STEPS,
            accumulate=accumulate,
            divide="first",
            seeds=seeds,
        )
        return parameters_hash(model)

    assert stock_ddp(str(tmp_path / "store"), dtype, accumulate, SEEDS[:2]) == {reference(SEEDS[:2])}
    assert reference(SEEDS[1:]) != reference(SEEDS[:2]), "dropout must show in the bits"


class Odd(nn.Module):
    """Parameters whose gradients are complex, or NaN of several signs and payloads, and infinities that cancel."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (torch.complex64, torch.complex128, torch.float32, torch.float64, torch.bfloat16, torch.float16)
        self.each = nn.ParameterList([nn.Parameter(torch.zeros(6, dtype=kind)) for kind in kinds])

    def forward(self, rank: int) -> Tensor:
        source = torch.Generator().manual_seed(rank)
        total = torch.zeros((), dtype=torch.float64)
        for parameter in self.each:
            weights = torch.randn(6, generator=source, dtype=torch.float64)
            if parameter.is_complex():
                weights = torch.complex(weights, torch.randn(6, generator=source, dtype=torch.float64))
            else:
                special = [-torch.nan, torch.nan, torch.inf, -torch.inf if rank == 1 else torch.inf]
                weights[:4] = torch.tensor([special[(rank + place) % 4] for place in range(4)], dtype=torch.float64)
            product = parameter * weights.to(parameter.dtype)
            total = total + (torch.view_as_real(product) if product.is_complex() else product).sum().double()
        return total


def mean_of_odd(buckets: int) -> list[str]:
    """On a rank: the parameters whose means have not the bits of one process."""
    ranks, alone = Odd(), Odd()
    ddp = Exact(ranks, bucket_cap_mb=0 if buckets else 25)
    ddp(HERE.rank).backward()
    one_process(alone, torch.optim.SGD(alone.parameters(), lr=0.0), lambda m, r, s, k: m(r), ranks=HERE.size, steps=1)
    return [str(a.dtype) for a, b in zip(ranks.each, alone.each, strict=True) if raw(a.grad) != raw(b.grad)]


def raw(tensor: Tensor) -> list[int]:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).view(torch.uint8).flatten().tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_means_of_complex_numbers_and_of_nan_are_those_of_ranks(world_of, ranks):
    for buckets in (0, 1):
        assert world_of(ranks).run(mean_of_odd, buckets) == [[]] * ranks


class Scale(nn.Module):
    """Two parameters, each a fragment."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(5))

    def loss(self, worker: int, step: int) -> Tensor:
        x = torch.randn(5, generator=torch.Generator().manual_seed(10 * step + worker))
        return (self.first * x - self.second).square().sum()


def test_steps_alone_are_streaming_diloco_by_hand():
    """Algorithm 2 of arXiv 2501.18512, with torch's SGD outside: H = 4, fragments leave after steps 2 and 4 of each."""
    outer, workers = Scale(), [Scale() for _ in range(3)]
    inner = [torch.optim.AdamW(worker.parameters(), lr=0.05) for worker in workers]
    outside = [torch.optim.SGD([p], lr=0.7, momentum=0.9, nesterov=True) for p in outer.parameters()]
    for step in range(1, 11):
        for number, worker in enumerate(workers):
            inner[number].zero_grad()
            worker.loss(number, step - 1).backward()
            inner[number].step()
        for fragment, name in enumerate(("first", "second")):
            theta = getattr(outer, name)
            if step % 4 == (2, 0)[fragment]:
                theta.grad = sum((theta - getattr(worker, name)).detach() for worker in workers) / 3
            if step > 2 and step % 4 == (3, 1)[fragment]:  # one step later
                outside[fragment].step()
                for worker in workers:
                    own = getattr(worker, name)
                    own.data = 0.25 * own.data + 0.75 * theta.data
    model = Scale()
    run = one_process_local(
        model,
        lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
        lambda model, worker, step: model.loss(worker, step),
        workers=3, steps=10, every=4, fragments=2, delay=1, alpha=0.25,
    )  # fmt: skip
    assert len(run.losses) == 10 and list(run.on_the_way) == [0]
    for found, wanted in zip([model, *run.models], [outer, *workers], strict=True):
        for value, other in zip(found.parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(value, other, rtol=1e-5, atol=1e-6)


def test_codes_lose_nothing_but_time():
    """What arrived and the residual is what was walked; without codes it is the same but for rounding."""
    runs = {}
    for compress in NAMES:
        model = make()[0]
        run = one_process_local(
            model,
            lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
            lambda model, worker, step: loss_of(model, worker, step, 0),
            workers=3, steps=8, every=2, outer_lr=1.0, momentum=0.0, compress=compress,
        )  # fmt: skip
        runs[compress] = torch.cat([value.flatten() for value in run.outer.values()])
    moved = {name: float((value - runs[None]).norm()) for name, value in runs.items()}
    assert 0 < moved["int8"] < moved["int4"] < min(moved["topk"], moved["topk-2bit"])


def test_steps_alone_need_arguments_that_a_diloco_takes():
    with pytest.raises(ValueError, match="every=0, must be a whole number of at least 1"):
        one_process_local(make()[0], torch.optim.SGD, loss_of, workers=2, steps=1, every=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_worker_that_meets_itself_is_alone(dtype):
    """W = 1 with an outer rate of 1 and no momentum: its parameters are the outer ones, up to rounding."""
    arguments = {"workers": 1, "steps": 6, "every": 2, "outer_lr": 1.0, "momentum": 0.0}
    model = make(dtype)[0]
    run = one_process_local(
        model,
        lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
        lambda model, worker, step: loss_of(model, worker, step, 0),
        **arguments,
    )
    plain = make(dtype)[0]
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-2)
    for step in range(6):
        with leaf(step, 0):
            optimizer.zero_grad()
            loss_of(plain, 0, step, 0).backward()
            optimizer.step()
    assert len(run.losses) == 6
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5 if dtype == torch.float32 else 2e-2, atol=1e-6)
