"""The proof: N ranks end with the parameters of one process that runs the N micro-batches in rank order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ringdp.examples.corpus import Windows
from ringdp.examples.feed import Feed
from ringdp.examples.gpt import next_token_loss
from ringdp.examples.options import Options
from ringdp.examples.parallel import adamw, data_parallel, with_whole_parameters
from ringdp.examples.trainer import before_optimizer, dropout_seed, make
from ringdp.examples.turn import on_rank_zero
from ringdp.testing import one_process, parameters_hash

STEPS = 20
LONGEST = 64
LARGEST_BATCH = 2
TEXT_BYTES = 1_000_000


@dataclass(frozen=True)
class Proof:
    """Hashes after STEPS steps: one per rank, and the one process's."""

    of_ranks: list[str]
    of_one_process: str

    @property
    def equal(self) -> bool:
        """Whether every rank has the bits of one process."""
        return set(self.of_ranks) == {self.of_one_process}

    @property
    def headline(self) -> str:
        """The verdict in few words."""
        return f"equal, sha256 {self.of_one_process[:12]}" if self.equal else "DIFFERENT"

    def __str__(self) -> str:
        if self.equal:
            return f"equal (sha256 {self.of_one_process[:12]})"
        ranks = ", ".join(f"rank {rank} {digest[:12]}" for rank, digest in enumerate(self.of_ranks))
        return f"DIFFERENT (one process {self.of_one_process[:12]}; {ranks})"


def promises_rank_order(backend: str, world: int, ddp: str) -> bool:
    """Whether a difference is a defect: ringdp's wrapper promises it everywhere, stock DDP where its backend does.

    Two addends have one order only; above that gloo promises none.
    """
    return ddp == "ringdp" or "ringdp" in backend or world <= 2


def prove(options: Options, train: Tensor) -> Proof:
    """Collective. A fresh model of the run's size, short sequences, the run's optimizer and dropout.

    The ranks train first; then rank 0 repeats the training alone while the others wait.
    """
    options = replace(options, seq=min(options.seq, LONGEST), batch=min(options.batch, LARGEST_BATCH))
    windows = Windows(train[:TEXT_BYTES], options.seq, "training")
    rank, world = dist.get_rank(), dist.get_world_size()
    of_ranks = [""] * world
    dist.all_gather_object(of_ranks, _on_this_rank(options, windows, rank, world))
    return Proof(of_ranks, on_rank_zero("proof", lambda: _in_one_process(options, windows, world)))


def _micro_batches(options: Options, windows: Windows, rank: int, world: int) -> list[Tensor]:
    feed = Feed(windows, options.batch, rank, world, options.seed)
    return list(islice(feed.starting_at(0), STEPS))


def _on_this_rank(options: Options, windows: Windows, rank: int, world: int) -> str:
    """The run's wrapper over the run's backend; the hash of this rank's parameters."""
    model = make(options, options.seq)
    ddp = data_parallel(model, options.ddp, zero_stage=options.zero_stage)
    optimizer = adamw(ddp, options.lr, options.zero_stage)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(dropout_seed(options, rank))
        for step, micro_batch in enumerate(_micro_batches(options, windows, rank, world)):
            optimizer.zero_grad(set_to_none=True)
            next_token_loss(ddp, micro_batch).backward()
            before_optimizer(model, optimizer, options, step, STEPS, world)
            optimizer.step()
    return parameters_hash(with_whole_parameters(ddp, model, lambda: make(options, options.seq)))


def _in_one_process(options: Options, windows: Windows, world: int) -> str:
    """The same steps without any communication; gradients are divided when the wrapper divides them."""
    model = make(options, options.seq)
    optimizer = adamw(model, options.lr)
    of_ranks = [_micro_batches(options, windows, rank, world) for rank in range(world)]

    def loss_of(model: nn.Module, rank: int, step: int, _micro: int) -> Tensor:
        return next_token_loss(model, of_ranks[rank][step])

    one_process(
        model,
        optimizer,
        loss_of,
        ranks=world,
        steps=STEPS,
        divide="once" if options.ddp == "ringdp" else "first",
        seeds=[dropout_seed(options, rank) for rank in range(world)],
        on_gradients=lambda step: before_optimizer(model, optimizer, options, step, STEPS, world),
    )
    return parameters_hash(model)
