"""Command line of train_gpt: one frozen `Options`, checked before any rank starts to work."""

# ruff: noqa: RUF009 - _option() is dataclasses.field()

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ringdp.examples.parallel import KINDS, ZERO_STAGES

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


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The command line as Options; exits with status 2 and a line naming the bad value."""
    parser = _parser()
    if parser.parse_known_args(arguments)[0].quick:
        parser.set_defaults(**QUICK)
    options = Options(**vars(parser.parse_args(arguments)))
    problem = _problem(options)
    if problem:
        parser.error(problem)
    return options


def _parser() -> argparse.ArgumentParser:
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
