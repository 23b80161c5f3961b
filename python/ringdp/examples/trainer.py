"""Data-parallel training: one step, evaluation, checkpoint and resume."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ringdp import clip_grad_norm_
from ringdp.examples import checkpoint
from ringdp.examples.corpus import Corpus, Windows
from ringdp.examples.feed import Feed
from ringdp.examples.gpt import GPT, Shape, next_token_loss
from ringdp.examples.interrupt import Interrupt
from ringdp.examples.observed import Observed, observe
from ringdp.examples.options import Options
from ringdp.examples.parallel import adamw, data_parallel, with_whole_parameters
from ringdp.examples.schedule import learning_rate, set_rate

EVALUATIONS = 5


@dataclass
class History:
    """What a run has seen. losses: per step, mean over ranks, nats per byte. step_seconds: without evaluation."""

    losses: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(self.step_seconds)


def shape_of(options: Options, context: int) -> Shape:
    """The model's sizes for sequences of up to `context` bytes."""
    return Shape(256, context, options.dim, options.layers, options.heads, options.dropout)


def make(options: Options, context: int) -> GPT:
    """A fresh model, equal on all ranks."""
    torch.manual_seed(options.seed)
    return GPT(shape_of(options, context))


def dropout_seed(options: Options, rank: int) -> int:
    """Ranks see different samples, so they draw different dropout masks."""
    return options.seed * 1009 + 1 + rank


def before_optimizer(model: GPT, optimizer: Optimizer, options: Options, step: int, steps: int, world: int) -> None:
    """Between backward and optimizer.step(): the step's learning rate, and clipping with the same bits at any stage."""
    set_rate(optimizer, learning_rate(step, steps, options.lr, world))
    if options.clip:
        clip_grad_norm_(model.parameters(), options.clip)


class Trainer:
    """One rank of the run. All methods but the constructor are collective."""

    def __init__(self, options: Options, corpus: Corpus) -> None:
        self.options, self.rank, self.world = options, dist.get_rank(), dist.get_world_size()
        self._windows = Windows(corpus.train, options.seq, "training")
        self._validation = Windows(corpus.validation, options.seq, "validation")
        self.feed = Feed(self._windows, options.batch, self.rank, self.world, options.seed)
        self.model = make(options, options.seq)
        self.ddp = data_parallel(self.model, options.ddp, zero_stage=options.zero_stage)
        self.optimizer = adamw(self.ddp, options.lr, options.zero_stage)
        torch.manual_seed(dropout_seed(options, self.rank))
        self.history = History()
        self._settings = {"ranks": self.world, "corpus": corpus.digest}
        for name in ("batch", "seq", "dim", "layers", "heads", "dropout", "lr", "clip", "seed"):
            self._settings[name] = getattr(options, name)

    @property
    def step(self) -> int:
        """Steps done."""
        return len(self.history.losses)

    def train(self, interrupt: Interrupt, report: Callable[[History], None]) -> None:
        """Up to `options.last_step`, or the end of the step in which any rank was interrupted; then save."""
        options = self.options
        with interrupt.deferred():
            if not self.history.validation:
                self.history.validation.append((0, self.evaluate()))
            for windows in self.feed.starting_at(self.step):
                if self.step >= options.last_step:
                    break
                interrupted = self._one_step(windows, interrupt)
                if self.step % -(-options.steps // EVALUATIONS) == 0 or self.step == options.steps:
                    self.history.validation.append((self.step, self.evaluate()))
                report(self.history)
                if interrupted:
                    break
                if options.save_every and self.step % options.save_every == 0 and self.step < options.last_step:
                    self.save()
            self.save()

    def _one_step(self, windows: torch.Tensor, interrupt: Interrupt) -> bool:
        """One step on this rank's micro-batch [B, T + 1]; whether any rank was interrupted before its end."""
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = next_token_loss(self.ddp, windows)
        loss.backward()
        before_optimizer(self.model, self.optimizer, self.options, self.step, self.options.steps, self.world)
        self.optimizer.step()
        # One small sum for both: the loss to show, and whether to stop, on which the ranks must agree.
        sums = torch.tensor([loss.item(), float(interrupt.number)])
        dist.all_reduce(sums)
        self.history.losses.append(sums[0].item() / self.world)
        self.history.step_seconds.append(time.perf_counter() - start)
        if sums[1] > 0 and not interrupt.number:
            interrupt.number = int(sums[1])
        return bool(sums[1] > 0)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss in nats per byte over `options.evaluate` batches, spread over text and ranks."""
        batch = self.options.batch
        count = max(1, min(self.options.evaluate, len(self._validation) // batch))
        stride = max(1, len(self._validation) // (count * batch))
        sums = torch.zeros(2, dtype=torch.float64)
        self.model.eval()
        for turn in range(0, count, self.world):
            number = turn + self.rank
            first = min(number, count - 1) * batch * stride
            picked = range(first, min(first + batch * stride, len(self._validation)), stride)
            windows = torch.stack([self._validation[index] for index in picked])
            loss = next_token_loss(self.model, windows).item()  # on all ranks: stage 3 gathers parameters for it
            if number < count:
                sums += torch.tensor([loss, 1.0], dtype=torch.float64)
        self.model.train()
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).item()

    def whole_model(self) -> GPT:
        """The model with all its parameters."""
        return with_whole_parameters(self.ddp, self.model, lambda: make(self.options, self.options.seq))

    def observe(self, model: GPT) -> Observed:
        """What rank 0 can say of the latest step; `model` has all parameters."""
        return observe(model, self.ddp, self.optimizer, self.options.zero_stage)

    def save(self) -> None:
        """Write a checkpoint of the steps done."""
        checkpoint.save(self.options.out, self.ddp, self.optimizer, asdict(self.history), self._settings)

    def resume(self) -> None:
        """Back to the checkpoint in `options.out`. FileNotFoundError; ValueError when of another run."""
        stored = checkpoint.load(self.options.out, self.ddp, self.optimizer, self._settings)
        if stored.keys() != asdict(History()).keys():
            raise ValueError(f"the checkpoint in {self.options.out} is another release's: start anew, without --resume")
        self.history = History(**stored)
