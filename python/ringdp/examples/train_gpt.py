"""The main job: train a small GPT on N ranks, data-parallel, and prove the bits.

    torchrun --nproc-per-node 2 -m ringdp.examples.train_gpt

The backend is a name given to init_process_group, the wrapper a class with torch's interface: `--ddp stock` trains with
torch's own. Every rank computes on one thread, because only then do two processes add up in the same order.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, TextIO

import torch
import torch.distributed as dist

from ringdp.checkpoint import CheckpointError
from ringdp.examples import corpus, launch, plot
from ringdp.examples.comparison import Comparison, compare
from ringdp.examples.gpt import GPT, sample
from ringdp.examples.interrupt import Interrupt
from ringdp.examples.options import Options, parse
from ringdp.examples.parallel import name_of
from ringdp.examples.progress import progress_for
from ringdp.examples.proof import STEPS, promises_rank_order, prove
from ringdp.examples.report import Report, beside_the_log, show
from ringdp.examples.schedule import warm_up_steps
from ringdp.examples.trainer import Trainer
from ringdp.examples.turn import on_rank_zero
from ringdp.observe.run_log import write_json
from ringdp.testing import parameters_hash
from ringdp.text.units import counted

MODULE = "ringdp.examples.train_gpt"
PROMPT = b"def "


def main() -> int:
    """The exit status: 0, 1 when the proof failed, 2 for bad arguments, 128 + n after signal n."""
    options = parse()
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
    say(f"proof: {STEPS} steps on {counted(trainer.world, 'rank')}, then the same in one process ...")
    proof = prove(options, text.train)
    report = Report(options.backend, trainer.world, tokens_per_step, trainer.history, comparison, final_hashes, proof)
    if trainer.rank == 0:
        publish(report, logged, options)
    return verdict(report, options.ddp)


def prepare(options: Options) -> tuple[corpus.Corpus, Trainer]:
    """Text and model, resumed where asked for. ValueError, FileNotFoundError or CheckpointError if they do not fit."""
    text = corpus.read(options.corpus, options.corpus_bytes)
    corpus.check_equal(text)
    trainer = Trainer(options, text)
    if options.resume:
        trainer.resume()
    return text, trainer


def introduction(options: Options, text: corpus.Corpus, trainer: Trainer) -> str:
    """What is about to run, in three lines."""
    parameters = sum(p.numel() for p in trainer.model.parameters())
    wrapper = f"{name_of(options.ddp, options.zero_stage)} over {options.backend}"
    peak, warm_up = options.lr * trainer.world, warm_up_steps(options.steps)
    return (
        f"text: {text.files} files of {options.corpus}, {len(text.train) / 1e6:.1f} MB to train on, "
        f"{len(text.validation) / 1e6:.1f} MB to validate (sha256 {text.digest[:12]})\n"
        f"model: {parameters / 1e6:.2f} million parameters; {counted(trainer.world, 'rank')}, "
        f"{wrapper}, one thread each (so that the bits can be compared)\n"
        f"learning rate: {options.lr:g} x {trainer.world} = {peak:g}, "
        f"warm-up {warm_up} of {options.steps} steps; starting after step {trainer.step}"
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
    say(f"the same steps over {options.backend} and gloo in alternation, {options.rounds} rounds ...")
    micro_batches = trainer.feed.starting_at(trainer.step)
    return compare(model, micro_batches, options.rounds, options.ddp, options.zero_stage)


def publish(report: Report, logged: dict[str, Any], options: Options) -> None:
    """The table, the PNG and the JSON, which has what was `logged` too; on rank 0 only."""
    show(report)
    what = f"GPT on {counted(report.world, 'rank')}, {name_of(options.ddp, options.zero_stage)} over {report.backend}"
    title = f"{what}: one process {report.proof.headline}"
    picture = plot.draw(options.out, title, report.backend, report.history, report.comparison)
    say(f"picture: {picture}" if picture else "no picture: matplotlib is not installed")
    if options.json:
        write_json({**logged, **beside_the_log(report)}, options.json)
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
        say(f"{report.backend} does not add up in rank order on {report.world} ranks: expected of it")
        return 0
    say("FAILED: the ranks must have the bits of one process", sys.stderr)
    return 1


def say(text: str, stream: TextIO | None = None) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(text, file=stream or sys.stdout, flush=True)


if __name__ == "__main__":
    sys.exit(main())
