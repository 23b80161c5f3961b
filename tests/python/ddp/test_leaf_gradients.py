"""micro_batches=M: the only gradient of a bucket becomes its sum without a copy, unless somebody else has it."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import ringdp
import torch
import torch.distributed as dist
from leafy import allotment, state_hash
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 4
WIDTH = 384  # of every layer: a multiple of what a bucket is padded to on 2 and on 3 ranks


class Square(nn.Sequential):
    """Layers of one weight, each in a bucket of its own if buckets are small. The transposed one has other strides."""

    def __init__(self, dtype: str) -> None:
        super().__init__(*(nn.Linear(WIDTH, WIDTH, bias=False, dtype=getattr(torch, dtype)) for _ in range(3)))
        self[1].weight = nn.Parameter(self[1].weight.detach().T)


def made(dtype: str) -> nn.Module:
    torch.manual_seed(5)
    return Square(dtype)


def loss_of(model: nn.Module, rank: int, step: int, leaf: int) -> Tensor:
    source = torch.Generator().manual_seed(100 * step + leaf)
    x = torch.randn(3, WIDTH, generator=source).to(next(model.parameters()).dtype)
    return model(x).abs().float().square().mean()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def reference(dtype: str, leaves: int) -> str:
    module = made(dtype)
    one_process(module, optimizer_of(module), loss_of, steps=STEPS, micro_batches=leaves)
    return state_hash(module)


def wrapped(dtype: str, leaves: int, **arguments: Any) -> tuple[DistributedDataParallel, Any]:
    ddp = DistributedDataParallel(made(dtype), micro_batches=leaves, bucket_cap_mb=0.001, **arguments)
    if not ddp.reducer.zero_stage:
        return ddp, optimizer_of(ddp)
    return ddp, ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=1e-3, momentum=0.9)


class Holder:
    """Keeps what it can get of gradients, and the values that they had then."""

    def __init__(self, how: str, model: nn.Module) -> None:
        self.held: list[tuple[Tensor, Tensor]] = []
        self.accumulators: list[Any] = []
        for parameter in model.parameters():
            if how == "hook of the tensor":
                parameter.register_hook(self.keep)
            elif how == "gradient after accumulation":
                parameter.register_post_accumulate_grad_hook(lambda p: self.keep(p.grad))
            elif how == "view after accumulation":
                parameter.register_post_accumulate_grad_hook(lambda p: self.keep(p.grad[1:]))
            elif how == "hook of the accumulator":
                self.accumulators.append(parameter.view_as(parameter).grad_fn.next_functions[0][0])
                self.accumulators[-1].register_hook(lambda _, outputs: self.keep(outputs[0]))

    def keep(self, gradient: Tensor) -> None:
        self.held.append((gradient, gradient.detach().clone()))

    def is_unchanged(self) -> bool:
        return all(torch.equal(gradient.detach(), value) for gradient, value in self.held)


def train(how: str, leaves: int, dtype: str, arguments: dict[str, Any]) -> tuple[str, list[float], bool]:
    """On a rank: the hash, sums of the gradients that the program holds, whether they are as they were."""
    ddp, optimizer = wrapped(dtype, leaves, **arguments)
    holder = Holder(how, ddp.module)
    for step in range(STEPS):
        for leaf in allotment("buddy", leaves, HERE.size)[HERE.rank]:
            with ringdp.leaf(step, leaf):
                loss_of(ddp, 0, step, leaf).backward()
                if how == "after backward":
                    for parameter in ddp.parameters():
                        holder.keep(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    return state_hash(ddp), [float(value.double().sum()) for _, value in holder.held], holder.is_unchanged()


HOOKS = (
    "hook of the tensor",
    "hook of the accumulator",
    "gradient after accumulation",
    "view after accumulation",
)


@pytest.mark.parametrize(
    ("how", "overlap"),
    [*((how, overlap) for how in HOOKS for overlap in (True, False)), ("after backward", False)],
)
def test_what_a_program_holds_of_a_gradient_does_not_change(pair, how, overlap):
    """Two leaves per rank: the second one is added to the first one's memory."""
    found = pair.run(train, how, 4, "float32", {"overlap": overlap})
    for bits, values, unchanged in found:
        assert (bits, len(values), unchanged) == (reference("float32", 4), 3 * 2 * STEPS, True)
    assert found == pair.run(train, how, 4, "float32", {"overlap": False})  # the leaf's own, not the sum


class Workspace(torch.autograd.Function):
    """A product whose backward pass puts the weight's gradient into memory of numpy, if `is_reused` always the same."""

    memory = np.empty((WIDTH, WIDTH), np.float32)
    is_reused = False

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = context.saved_tensors
        np.matmul(gradient.T.numpy(), x.detach().numpy(), out=Workspace.memory)
        found = torch.from_numpy(Workspace.memory)
        return gradient @ weight, found if Workspace.is_reused else found.clone()


class WithWorkspace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, WIDTH * WIDTH).view(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return Workspace.apply(x, self.weight)


def train_with_workspace(overlap: bool) -> str:
    Workspace.is_reused = True
    ddp = DistributedDataParallel(WithWorkspace(), micro_batches=4, overlap=overlap)
    optimizer = optimizer_of(ddp)
    for step in range(STEPS):
        for leaf in allotment("buddy", 4, HERE.size)[HERE.rank]:
            with ringdp.leaf(step, leaf):
                loss_of(ddp, 0, step, leaf).backward()
            Workspace.memory.fill(float("nan"))
        optimizer.step()
        optimizer.zero_grad()
    return state_hash(ddp)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_gradient_in_memory_of_another_library_is_copied(pair, overlap):
    module = WithWorkspace()
    one_process(module, optimizer_of(module), loss_of, steps=STEPS, micro_batches=4)
    assert pair.run(train_with_workspace, overlap) == [state_hash(module)] * 2


@pytest.mark.parametrize(
    ("dtype", "stage"),
    [("float32", 0), ("bfloat16", 0), ("complex64", 0), ("float32", 2), ("bfloat16", 2)],  # no complex shards
)
def test_sums_have_the_bits_of_one_process(world_of, dtype, stage):
    for ranks, leaves in ((2, 2), (2, 5), (3, 5)):
        outcomes = world_of(ranks).run(train, "nobody", leaves, dtype, {"zero_stage": stage})
        assert outcomes == [(reference(dtype, leaves), [], True)] * ranks


def bytes_moved() -> int:
    """In shared memory, by all groups of this rank."""
    counters = [group["counters"] for group in ringdp.stats()["groups"]]
    return sum(counted["memory_bytes_read"] + counted["memory_bytes_written"] for counted in counters)


def copies_and_traffic() -> tuple[list[set[bool]], int, float]:
    """On a rank: whether buckets are said to be shared, by step; in the last step copies, and bytes moved per byte."""
    ddp, optimizer = wrapped("float32", HERE.size)
    shared = []
    for step in range(STEPS):
        shared.append({bucket["shared"] for bucket in ddp.reducer.buckets()})
        before = bytes_moved()
        with torch.profiler.profile() as profile, ringdp.leaf(step, HERE.rank):
            loss_of(ddp, 0, step, HERE.rank).backward()
        optimizer.step()
        traffic = bytes_moved() - before
        optimizer.zero_grad()
    copies = sum(event.count for event in profile.key_averages() if event.key == "aten::_foreach_copy_")
    return shared, copies, traffic / sum(parameter.nbytes for parameter in ddp.parameters())


def traffic_of_other_tensors() -> list[bool]:
    """On a rank: whether tensors of a gradient's size lie in the memory of the sums: one made during a backward pass,
    after it in the leaf, after the leaf, and after a leaf that has failed.
    """
    ddp, optimizer = wrapped("float32", HERE.size)
    made_inside: list[Tensor] = []
    ddp.module[1].weight.register_post_accumulate_grad_hook(lambda p: made_inside.append(torch.ones(p.shape)))
    for step in range(STEPS):
        with contextlib.suppress(ZeroDivisionError), ringdp.leaf(step, HERE.rank):
            loss_of(ddp, 0, step, HERE.rank)
            raise ZeroDivisionError
        after_failure = torch.ones(WIDTH, WIDTH)
        with ringdp.leaf(step, HERE.rank):
            loss_of(ddp, 0, step, HERE.rank).backward()
            after_backward = torch.ones(WIDTH, WIDTH)
        after_leaf = torch.ones(WIDTH, WIDTH)
        optimizer.step()
        optimizer.zero_grad()
    places = []
    for tensor in (made_inside[-1], after_backward, after_leaf, after_failure):
        before = bytes_moved()
        dist.all_reduce(tensor, group=ddp.reducer.leaf_steps._group)
        places.append((bytes_moved() - before) / tensor.nbytes < 2.5)  # else it goes through slots
    return places


def test_only_what_a_backward_pass_makes_is_in_the_memory_of_the_sums(run_on_fresh_ranks):
    world = run_on_fresh_ranks(2)
    world.join()
    assert world.run(traffic_of_other_tensors) == [[True, False, False, False]] * 2


def test_a_gradient_is_made_in_shared_memory_and_not_copied(run_on_fresh_ranks):
    """One pass moves 2 bytes per byte; through slots it is more."""
    world = run_on_fresh_ranks(2)
    world.join()
    for shared, copies, traffic in world.run(copies_and_traffic):
        assert shared == [{False}] + [{True}] * (STEPS - 1)
        assert copies == 0
        assert traffic == pytest.approx(2, rel=0.02)
