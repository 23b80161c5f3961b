"""Data-parallel training: one step, evaluation, checkpoint and resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ringdp import RunLog, clip_grad_norm_
from ringdp.examples import checkpoint
from ringdp.examples.corpus import Corpus, Windows
from ringdp.examples.feed import Feed
from ringdp.examples.gpt import GPT, Shape, next_token_loss
from ringdp.examples.interrupt import Interrupt
from ringdp.examples.options import Options
from ringdp.examples.parallel import adamw, data_parallel, with_whole_parameters
from ringdp.examples.schedule import learning_rate, set_rate
from ringdp.observe.run_history import History

EVALUATIONS = 5


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
        tokens = options.batch * options.seq * self.world
        self.log = RunLog(self.ddp, self.optimizer, items_per_step=tokens, unit="tokens", settings=asdict(options))
        self._settings = {"ranks": self.world, "corpus": corpus.digest}
        for name in ("batch", "seq", "dim", "layers", "heads", "dropout", "lr", "clip", "seed"):
            self._settings[name] = getattr(options, name)

    @property
    def history(self) -> History:
        """Of the steps done; losses are means over the ranks, in nats per byte."""
        return self.log.history

    @property
    def step(self) -> int:
        """Steps done."""
        return len(self.history.losses)

    def train(self, interrupt: Interrupt, report: Callable[[History], None]) -> None:
        """Up to `options.last_step`, or the end of the step in which any rank was interrupted; then save."""
        options = self.options
        with interrupt.deferred():
            if not self.history.validation:
                self.log.validation(self.evaluate())
            self.log.leave_out()
            for windows in self.feed.starting_at(self.step):
                if self.step >= options.last_step:
                    break
                interrupted = self._one_step(windows, interrupt)
                if self.step % -(-options.steps // EVALUATIONS) == 0 or self.step == options.steps:
                    self.log.validation(self.evaluate())
                report(self.history)
                if interrupted:
                    break
                if options.save_every and self.step % options.save_every == 0 and self.step < options.last_step:
                    self.save()
                    self.log.leave_out()
            self.save()

    def _one_step(self, windows: torch.Tensor, interrupt: Interrupt) -> bool:
        """One step on this rank's micro-batch [B, T + 1]; whether any rank was interrupted before its end."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = next_token_loss(self.ddp, windows)
        loss.backward()
        before_optimizer(self.model, self.optimizer, self.options, self.step, self.options.steps, self.world)
        self.optimizer.step()
        # One small sum for both: the loss to show, and whether to stop, on which the ranks must agree.
        sums = torch.tensor([loss.item(), float(interrupt.number)])
        dist.all_reduce(sums)
        self.log.step(sums[0].item() / self.world)
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

    def save(self) -> None:
        """Write a checkpoint of the steps done."""
        checkpoint.save(self.options.out, self.ddp, self.optimizer, self.log.state_dict(), self._settings)

    def resume(self) -> None:
        """Back to the checkpoint in `options.out`. FileNotFoundError; ValueError when of another run."""
        stored = checkpoint.load(self.options.out, self.ddp, self.optimizer, self._settings)
        try:
            self.log.load_state_dict(stored)
        except ValueError as problem:
            release = f"the checkpoint in {self.options.out} is another release's: start anew, without --resume"
            raise ValueError(f"{release} ({problem})") from None
