"""The main job: train a small GPT on N ranks, data-parallel, and prove the bits.

    torchrun --nproc-per-node 2 -m ringdp.examples.train_gpt

The backend is a name given to init_process_group, the wrapper a class with torch's interface: `--ddp stock` trains with
torch's own. Every rank computes on one thread, because only then do two processes add up in the same order.
"""

from __future__ import annotations

import argparse
import gc
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ringdp import RunLog, checkpoint, clip_grad_norm_
from ringdp.checkpoint import CheckpointError
from ringdp.checkpoint.ranks import ranks_of
from ringdp.examples import launch
from ringdp.examples.gpt import (
    GPT,
    KINDS,
    ZERO_STAGES,
    Corpus,
    Feed,
    Shape,
    Windows,
    adamw,
    check_same_text,
    data_parallel,
    learning_rate,
    name_of,
    next_token_loss,
    read_corpus,
    sample,
    set_rate,
    warm_up_steps,
    with_whole_parameters,
)
from ringdp.examples.gpt_report import (
    PROOF_STEPS,
    Comparison,
    Proof,
    Report,
    compare,
    draw_picture,
    print_report,
    progress_for,
    promises_rank_order,
    report_json,
)
from ringdp.examples.launch import Interrupt, on_rank_zero
from ringdp.testing import one_process, parameters_hash
from ringdp.text.units import counted
from ringdp.tools.observe.run_log import History, write_json

# ruff: noqa: RUF009 - _option() is dataclasses.field()


DESCRIPTION = """Trains a small GPT on the source of Python's standard library, data-parallel, and shows that N ranks
end with the bits of one process."""
EPILOG = """start it with: torchrun --nproc-per-node 2 -m ringdp.examples.train_gpt
(or, without torchrun: python -m ringdp.examples.train_gpt --nproc 2)"""

# Defaults under --quick: seconds instead of minutes.
QUICK = {"steps": 12, "batch": 2, "seq": 32, "dim": 32, "layers": 2, "heads": 2}
QUICK |= {"rounds": 3, "corpus_bytes": 300_000, "sample": 40, "evaluate": 4}

ABOVE_ZERO = ("steps", "batch", "seq", "dim", "layers", "heads", "lr", "evaluate")
NOT_NEGATIVE = ("clip", "rounds", "sample", "save_every", "corpus_bytes", "seed", "dropout")


def _option(kind: Callable[[str], Any], default: Any, text: str, metavar: str | None = None) -> Any:
    """A field of Options that is --its-name on the command line; `text` is its help."""
    return field(default=default, metadata={"kind": kind, "help": text, "metavar": metavar})


@dataclass(frozen=True)
class Options:
    """What a run does. Each field is an option of the command line."""

    backend: str = _option(str, "ringdp", "process group backend, e.g. ringdp, gloo, cpu:ringdp")
    ddp: str = _option(str, "ringdp", "the wrapper: ringdp (ringdp.DistributedDataParallel) or stock (torch's)")
    zero_stage: int = _option(int, 0, "what ranks share: 1 optimizer state, 2 gradients too, 3 parameters too", "STAGE")
    nproc: int | None = _option(int, None, "start N ranks (1..8) here, when not started by torchrun", "N")
    steps: int = _option(int, 400, "optimizer steps")
    stop_at: int | None = _option(int, None, "write a checkpoint after STEP and end, for --resume", "STEP")
    resume: bool = _option(bool, False, "go on from the checkpoint in --out, to the bits of an unbroken run")
    quick: bool = _option(bool, False, "a tiny model and few steps: seconds, not minutes")
    batch: int = _option(int, 4, "sequences per rank and step")
    seq: int = _option(int, 128, "tokens (bytes) per sequence")
    dim: int = _option(int, 256, "model width")
    layers: int = _option(int, 4, "transformer blocks")
    heads: int = _option(int, 4, "attention heads; must divide --dim")
    dropout: float = _option(float, 0.0, "dropout probability")
    lr: float = _option(float, 6e-4, "AdamW's rate for one rank; N ranks use N times it")
    clip: float = _option(float, 1.0, "largest gradient norm; 0 turns clipping off")
    seed: int = _option(int, 0, "seed of parameters, order of the text and dropout")
    corpus: Path = _option(Path, Path(sysconfig.get_path("stdlib")), "train on the .py files under DIR", "DIR")
    corpus_bytes: int = _option(int, 0, "read about this much text; 0 is all", "BYTES")
    out: Path = _option(Path, Path("ringdp-demo"), "where checkpoint and PNG go", "DIR")
    json: Path | None = _option(Path, None, "write the report as JSON, too", "PATH")
    save_every: int = _option(int, 100, "steps between checkpoints; 0: only at the end", "STEPS")
    rounds: int = _option(int, 10, "rounds of the comparison with gloo; 0 leaves it out")
    evaluate: int = _option(int, 32, "validation batches, over all ranks", "BATCHES")
    sample: int = _option(int, 240, "length of the text sampled at the end", "BYTES")

    @property
    def last_step(self) -> int:
        """The step after which this run ends: `steps`, or `stop_at` where that is earlier."""
        return self.steps if self.stop_at is None else min(self.stop_at, self.steps)


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """The command line as Options; exits with status 2 and a line naming the bad value."""
    parser = _options_parser()
    if parser.parse_known_args(arguments)[0].quick:
        parser.set_defaults(**QUICK)
    options = Options(**vars(parser.parse_args(arguments)))
    problem = _problem(options)
    if problem:
        parser.error(problem)
    return options


def _options_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train_gpt",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option in fields(Options):
        flag = f"--{option.name.replace('_', '-')}"
        text, kind = option.metadata["help"], option.metadata["kind"]
        if kind is bool:
            parser.add_argument(flag, action="store_true", help=text)
            continue
        shown = "" if option.default is None else " (default %(default)s)"
        metavar = option.metadata["metavar"] or option.name.upper()
        parser.add_argument(flag, type=kind, default=option.default, metavar=metavar, help=text + shown)
    return parser


def _problem(options: Options) -> str | None:
    """What is wrong with the options, as a sentence, or None."""
    for name in ABOVE_ZERO + NOT_NEGATIVE:
        value, zero_is_fine = getattr(options, name), name in NOT_NEGATIVE
        if not (value > 0 or (value == 0 and zero_is_fine)):
            least = "at least 0" if zero_is_fine else "above 0"
            return f"--{name.replace('_', '-')} is {value}, must be {least}"
    if options.nproc is not None and not 1 <= options.nproc <= 8:
        return f"--nproc is {options.nproc}, must be 1..8; for more ranks start it with torchrun"
    if options.ddp not in KINDS:
        return f"--ddp is {options.ddp!r}, must be one of {', '.join(KINDS)}"
    if options.zero_stage not in ZERO_STAGES:
        return f"--zero-stage is {options.zero_stage}, must be one of {', '.join(map(str, ZERO_STAGES))}"
    if options.zero_stage and options.ddp == "stock":
        return f"--zero-stage is {options.zero_stage}, which needs --ddp ringdp"
    if options.stop_at is not None and options.stop_at < 1:
        return f"--stop-at is {options.stop_at}, must be at least 1"
    if options.dim % options.heads:
        return f"--heads is {options.heads}, which does not divide --dim {options.dim}"
    if options.dropout >= 1:
        return f"--dropout is {options.dropout}, must be below 1"
    if not options.corpus.is_dir():
        return f"--corpus is {options.corpus}, which is not a folder"
    return None


# Checkpoints by ringdp.checkpoint are the same at every zero_stage, and can be resumed at any other. In addition to
# parameters, optimizer and generators they have the history, whose length is the step (which fixes the sampler's epoch
# and position and the learning rate), and the settings that make it the same run.
FOLDER = "checkpoints"


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: Optimizer, history: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Collective. Writes the next checkpoint in `folder`/checkpoints; the two latest stay.

    CheckpointError on every rank when that fails on one.
    """
    ranks_of(None).on_first("making the folder of a run", lambda: _make_folder(folder))
    checkpoint.save(folder / FOLDER, model, optimizer, extra={"history": history, "settings": settings})


def load_checkpoint(folder: Path, model: nn.Module, optimizer: Optimizer, settings: dict[str, Any]) -> dict[str, Any]:
    """Collective. The history of the latest checkpoint, after model, optimizer and generators have its state.

    Before anything changes: FileNotFoundError without a checkpoint; ValueError, naming both values, when a setting
    differs; CheckpointError when it is damaged.
    """
    checkpoints = folder / FOLDER
    if not any(checkpoints.glob("checkpoint-*")):
        raise FileNotFoundError(
            f"--resume: there is no checkpoint in {checkpoints}; run without --resume first, "
            "or give its folder as --out"
        )
    saved = checkpoint.read(checkpoints, tensors=False)
    for name, wanted in settings.items():
        found = saved.extras[0]["settings"].get(name)
        if found != wanted:
            raise ValueError(
                f"--resume: {saved.path} was written with {name} = {found}, this run has {name} = {wanted}"
            )
    return checkpoint.load(saved.path, model, optimizer).extra["history"]


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")


EVALUATIONS = 5


def shape_of(options: Options, context: int) -> Shape:
    """The model's sizes for sequences of up to `context` bytes."""
    return Shape(256, context, options.dim, options.layers, options.heads, options.dropout)


def make_model(options: Options, context: int) -> GPT:
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
        self.model = make_model(options, options.seq)
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
        return with_whole_parameters(self.ddp, self.model, lambda: make_model(self.options, self.options.seq))

    def save(self) -> None:
        """Write a checkpoint of the steps done."""
        save_checkpoint(self.options.out, self.ddp, self.optimizer, self.log.state_dict(), self._settings)

    def resume(self) -> None:
        """Back to the checkpoint in `options.out`. FileNotFoundError; ValueError when of another run."""
        stored = load_checkpoint(self.options.out, self.ddp, self.optimizer, self._settings)
        try:
            self.log.load_state_dict(stored)
        except ValueError as problem:
            release = f"the checkpoint in {self.options.out} is another release's: start anew, without --resume"
            raise ValueError(f"{release} ({problem})") from None


LONGEST = 64
LARGEST_BATCH = 2
TEXT_BYTES = 1_000_000


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
    return list(islice(feed.starting_at(0), PROOF_STEPS))


def _on_this_rank(options: Options, windows: Windows, rank: int, world: int) -> str:
    """The run's wrapper over the run's backend; the hash of this rank's parameters."""
    model = make_model(options, options.seq)
    ddp = data_parallel(model, options.ddp, zero_stage=options.zero_stage)
    optimizer = adamw(ddp, options.lr, options.zero_stage)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(dropout_seed(options, rank))
        for step, micro_batch in enumerate(_micro_batches(options, windows, rank, world)):
            optimizer.zero_grad(set_to_none=True)
            next_token_loss(ddp, micro_batch).backward()
            before_optimizer(model, optimizer, options, step, PROOF_STEPS, world)
            optimizer.step()
    return parameters_hash(with_whole_parameters(ddp, model, lambda: make_model(options, options.seq)))


def _in_one_process(options: Options, windows: Windows, world: int) -> str:
    """The same steps without any communication; gradients are divided when the wrapper divides them."""
    model = make_model(options, options.seq)
    optimizer = adamw(model, options.lr)
    of_ranks = [_micro_batches(options, windows, rank, world) for rank in range(world)]

    def loss_of(model: nn.Module, rank: int, step: int, _micro: int) -> Tensor:
        return next_token_loss(model, of_ranks[rank][step])

    one_process(
        model,
        optimizer,
        loss_of,
        ranks=world,
        steps=PROOF_STEPS,
        divide="once" if options.ddp == "ringdp" else "first",
        seeds=[dropout_seed(options, rank) for rank in range(world)],
        on_gradients=lambda step: before_optimizer(model, optimizer, options, step, PROOF_STEPS, world),
    )
    return parameters_hash(model)


MODULE = "ringdp.examples.train_gpt"
PROMPT = b"def "


def main() -> int:
    """The exit status: 0, 1 when the proof failed, 2 for bad arguments, 128 + n after signal n."""
    options = parse_options()
    if not launch.started_by_torchrun():
        if options.nproc is None:
            print(launch.how_to_start(MODULE), file=sys.stderr)
            return 2
        launch.become_torchrun(MODULE, options.nproc, sys.argv[1:])
    torch.set_num_threads(1)
    interrupt = Interrupt()
    interrupt.install()
    dist.init_process_group(options.backend)
    try:
        return run(options, interrupt)
    finally:
        gc.collect()  # a wrapper is part of cycles and keeps its group, whose threads (gloo's) must end before Python
        dist.destroy_process_group()


def run(options: Options, interrupt: Interrupt) -> int:
    """Train, compare, prove and report, as one rank of many; returns the exit status."""
    try:
        text, trainer = prepare(options)
    except (ValueError, FileNotFoundError, CheckpointError) as problem:
        say(f"train_gpt: {problem}", sys.stderr)
        return 2
    tokens_per_step = options.batch * options.seq * trainer.world
    say(introduction(options, text, trainer))
    with progress_for(trainer.rank, trainer.step, options.last_step, tokens_per_step) as progress:
        trainer.train(interrupt, progress.show)
    if trainer.step < options.steps:
        say(f"stopped after step {trainer.step} of {options.steps}; go on with --resume (checkpoint in {options.out})")
        return 128 + interrupt.number if interrupt.number else 0
    model = trainer.whole_model()
    logged = trainer.log.report()
    say(f"memory on rank 0: {trainer.log.memory}")
    say_sample(options, model)
    final_hashes = [""] * trainer.world
    dist.all_gather_object(final_hashes, parameters_hash(model))
    comparison = compare_with_gloo(options, trainer, model)
    say(f"proof: {PROOF_STEPS} steps on {counted(trainer.world, 'rank')}, then the same in one process ...")
    proof = prove(options, text.train)
    report = Report(options.backend, trainer.world, tokens_per_step, trainer.history, comparison, final_hashes, proof)
    if trainer.rank == 0:
        write_report(report, logged, options)
    return verdict(report, options.ddp)


def prepare(options: Options) -> tuple[Corpus, Trainer]:
    """Text and model, resumed where asked for. ValueError, FileNotFoundError or CheckpointError if they do not fit."""
    text = read_corpus(options.corpus, options.corpus_bytes)
    check_same_text(text)
    trainer = Trainer(options, text)
    if options.resume:
        trainer.resume()
    return text, trainer


def introduction(options: Options, text: Corpus, trainer: Trainer) -> str:
    """What is about to run, in three lines."""
    parameters = sum(p.numel() for p in trainer.model.parameters())
    wrapper = f"{name_of(options.ddp, options.zero_stage)} over {options.backend}"
    peak, warm_up = options.lr * trainer.world, warm_up_steps(options.steps)
    return (
        f"text: {counted(text.files, 'file')} of {options.corpus}, {len(text.train) / 1e6:.1f} MB to train on, "
        f"{len(text.validation) / 1e6:.1f} MB to validate (sha256 {text.digest[:12]})\n"
        f"model: {parameters / 1e6:.2f} million parameters; {counted(trainer.world, 'rank')}, "
        f"{wrapper}, one thread each (so that the bits can be compared)\n"
        f"learning rate: {options.lr:g} x {trainer.world} = {peak:g}, "
        f"warm-up {warm_up} of {counted(options.steps, 'step')}; starting after step {trainer.step}"
    )


def say_sample(options: Options, model: GPT) -> None:
    """Let the model write. Rank 0 does it, because one is enough."""

    def write() -> str:
        return sample(model, PROMPT, options.sample, options.seed).decode(errors="replace")

    if options.sample:
        lines = on_rank_zero("sample", write).split("\n")
        # A sampled control character must not reach the terminal.
        shown = ["".join(c if c.isprintable() else "\N{MIDDLE DOT}" for c in line) for line in lines]
        say("\n".join(["", "what it writes now:", *(f"  | {line}" for line in shown), ""]))


def compare_with_gloo(options: Options, trainer: Trainer, model: GPT) -> Comparison | None:
    """The same steps over gloo; None where --rounds 0 leaves it out."""
    if not options.rounds:
        return None
    say(f"the same steps over {options.backend} and gloo in alternation, {counted(options.rounds, 'round')} ...")
    micro_batches = trainer.feed.starting_at(trainer.step)
    return compare(model, micro_batches, options.rounds, options.ddp, options.zero_stage)


def write_report(report: Report, logged: dict[str, Any], options: Options) -> None:
    """The table, the PNG and the JSON, which has what was `logged` too; on rank 0 only."""
    print_report(report)
    what = f"GPT on {counted(report.world, 'rank')}, {name_of(options.ddp, options.zero_stage)} over {report.backend}"
    title = f"{what}: one process {report.proof.headline}"
    picture = draw_picture(options.out, title, report.backend, report.history, report.comparison)
    say(f"picture: {picture}" if picture else "no picture: matplotlib is not installed")
    if options.json:
        write_json({**logged, **report_json(report)}, options.json)
        say(f"report: {options.json} (as a page: ringdp report {options.json})")


def verdict(report: Report, ddp: str) -> int:
    """0, or 1 when ranks drifted apart or bits that must be equal are not; says which."""
    if len(set(report.final_hashes)) > 1:
        say("FAILED: the ranks have different parameters after the training", sys.stderr)
        return 1
    say(f"one process: {report.proof}")
    if report.proof.equal:
        return 0
    if not promises_rank_order(report.backend, report.world, ddp):
        say(f"{report.backend} does not add up in rank order on {counted(report.world, 'rank')}: expected of it")
        return 0
    say("FAILED: the ranks must have the bits of one process", sys.stderr)
    return 1


def say(text: str, stream: TextIO | None = None) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(text, file=stream or sys.stdout, flush=True)


if __name__ == "__main__":
    sys.exit(main())
