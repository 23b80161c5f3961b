"""Scripts in the manner of well-known ones, the faults that are planted in them, and harmless changes. Two ranks.

A change is pairs of a line and what stands in its place, as in planted.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "foreign"
Change = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Fault:
    """`said`: what stands in the finding; `ranks`: those that it is about, None where that depends on the moment."""

    script: str
    change: Change
    check: str
    said: str
    ranks: tuple[int, ...] | None = ()
    options: tuple[str, ...] = ()
    backends: tuple[str, ...] = ("ringdp", "gloo")


_BATCH = "        self.optimizer.zero_grad()\n"
_STEP = "        self.optimizer.step()\n"
_WRAPPED = "        self.model = DDP(model)\n"
_SOURCE = "        output = self.model(source)\n"
_INDEX = "        return self.data[index]\n"
_COUNT = "        self.steps = getattr(self, 'steps', 0) + 1\n"
_SEED = "torch.manual_seed(1337 + rank)\n"
_TOKENS = "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
_AVERAGE = "            average_gradients(model)\n"
_BACKWARD = "        loss.backward()\n"
_HANG = ("--timeout", "6")


def _on_rank_1(indent: int, what: str, where: str = "") -> str:
    return " " * indent + f"if int(os.environ['RANK']) == 1{where}:\n" + " " * (indent + 4) + f"{what}\n"


FAULTS: dict[str, Fault] = {
    "changed after wrapping": Fault(
        "tutorial",
        ((_WRAPPED, _WRAPPED + _on_rank_1(8, "self.model.module[0].weight.data[0, 0] += 1")),),
        "drifted replicas",
        "when the wrapper was made they were equal, and rank 1 changed them since",
        (1,),
    ),
    "changed in step 7": Fault(
        "tutorial",
        (
            (
                _STEP,
                _STEP + _COUNT + _on_rank_1(8, "self.model.module[2].bias.data.add_(1e-3)", " and self.steps == 7"),
            ),
        ),
        "drifted replicas",
        "different values of 2.bias before step 8; after step 7 they were equal, and rank 1 changed them since",
        (1,),
    ),
    "no sampler": Fault(
        "tutorial",
        (
            ("shuffle=False, sampler=DistributedSampler(dataset)", "shuffle=True"),
            ("        self.train_data.sampler.set_epoch(epoch)\n", ""),
        ),
        "duplicates",
        "no sampler divides the data set between them",
        (0, 1),
    ),
    "no set_epoch": Fault(
        "tutorial",
        (("        self.train_data.sampler.set_epoch(epoch)\n", ""),),
        "stale epoch",
        "the samples come in the order of epoch 1",
        (0, 1),
    ),
    "around the wrapper": Fault(
        "tutorial",
        ((_SOURCE, "        output = self.model.module(source)\n"),),
        "unsynchronised",
        "no forward pass went through the wrapper",
    ),
    "all in no_sync": Fault(
        "tutorial",
        ((_SOURCE, "        with self.model.no_sync():\n            output = self.model(source)\n"),),
        "unsynchronised",
        "were inside no_sync()",
    ),
    "learning rate of its own": Fault(
        "tutorial",
        (("lr=1e-3)", "lr=1e-3 * (1 + dist.get_rank()))"),),
        "drifted replicas",
        "the learning rates are 0.001 on rank 0, 0.002 on rank 1",
    ),
    "parameter beside the wrapper": Fault(
        "tutorial",
        (
            (
                "    train_data = prepare",
                "    scale = torch.nn.Parameter(torch.ones(1))\n"
                "    optimizer.add_param_group({'params': [scale]})\n"
                "    optimizer.scale = scale\n    train_data = prepare",
            ),
            ("F.mse_loss(output,", "F.mse_loss(output * self.optimizer.scale,"),
        ),
        "unsynchronised",
        "those of parameter 4 [1] of SGD differ between them",
    ),
    "raises": Fault(
        "tutorial",
        ((_BATCH, _BATCH + _COUNT + _on_rank_1(8, "raise RuntimeError('bad sample')", " and self.steps == 9")),),
        "failed",
        "rank 1 ended with RuntimeError at train.py, line ",
        None,
    ),
    "stands still": Fault(
        "tutorial",
        ((_BATCH, _BATCH + _COUNT + _on_rank_1(8, "time.sleep(600)", " and self.steps == 9")),),
        "hang",
        "rank 1 has not called for ",
        (1,),
        _HANG,
    ),
    "slow samples": Fault(
        "tutorial",
        ((_INDEX, _on_rank_1(8, "time.sleep(0.02)") + _INDEX),),
        "straggler",
        "rank 1 makes rank 0 wait",
        (1,),
    ),
    "fewer batches": Fault(
        "tutorial",
        ((_BATCH, _COUNT + _on_rank_1(8, "sys.exit(0)", " and self.steps == 13") + _BATCH),),
        "failed",
        "PeerLost: rank 1 (pid ",
        None,
        backends=("ringdp",),
    ),
    "barrier of one rank": Fault(
        "tutorial",
        (("        if self.rank == 0:\n", "        if self.rank == 0:\n            dist.barrier()\n"),),
        "failed",
        "barrier",
        None,
        backends=("ringdp",),
    ),
    "different starts": Fault(
        "tutorial",
        (("DDP(model)", "DDP(model, init_sync=False)"), ("torch.manual_seed(0)", "torch.manual_seed(dist.get_rank())")),
        "drifted replicas",
        "the first that was looked at",
    ),
    "one seed": Fault(
        "gpt",
        ((_SEED, "torch.manual_seed(1337)\n"), ("model(*get_batch())[1]", "model(X, Y)[1]")),
        "same work",
        "the same gradients",
        (0, 1),
    ),
    "no last micro-batch": Fault(
        "gpt",
        (("== gradient_accumulation_steps - 1", "== gradient_accumulation_steps"),),
        "unsynchronised",
        "were inside no_sync()",
    ),
    "killed": Fault(
        "gpt",
        ((_TOKENS, _on_rank_1(4, "os.kill(os.getpid(), 9)", " and iter_num == 9") + _TOKENS),),
        "failed",
        "rank 1 ended with signal 9",
        (1,),
    ),
    "stopped": Fault(
        "gpt",
        ((_TOKENS, _on_rank_1(4, "os.kill(os.getpid(), 19)", " and iter_num == 9") + _TOKENS),),
        "hang",
        "its process is stopped by a signal",
        (1,),
        _HANG,
    ),
    "slow backward": Fault(
        "gpt",
        ((_BACKWARD, "        time.sleep(0.1 * rank)\n" + _BACKWARD),),
        "straggler",
        "rank 1 makes rank 0 wait",
        (1,),
    ),
    "layer on one rank": Fault(
        "gpt",
        (
            ("+ self.wpe(torch.arange(idx.size(1)))", "+ (0 if rank else self.wpe(torch.arange(idx.size(1))))"),
            ("DDP(GPT())", "DDP(GPT(), find_unused_parameters=True)"),
        ),
        "partial layer",
        "rank 1 computed no gradient for wpe.weight",
        (1,),
    ),
    "evaluates with the others missing": Fault(
        "gpt",
        ((':.4f}")\n    for', ':.4f}")\n        time.sleep(600 if iter_num == 10 else 0)\n    for'),),
        "hang",
        "rank 0 has not called for ",
        (0,),
        _HANG,
    ),
    "never averaged": Fault(
        "by_hand", ((_AVERAGE, ""),), "unsynchronised", "no collective and no DistributedDataParallel"
    ),
    "only matrices averaged": Fault(
        "by_hand",
        (
            (
                "        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)\n        param.grad.data /= size\n",
                "        if param.dim() > 1:\n            dist.all_reduce(param.grad.data)\n"
                "            param.grad.data /= size\n",
            ),
        ),
        "unsynchronised",
        "those of parameter 1 [16] of SGD, parameter 3 [4] of SGD differ between them; the script's own collectives",
    ),
    "starts of their own": Fault(
        "by_hand",
        (("    model = nn.", "    torch.manual_seed(rank)\n    model = nn."),),
        "drifted replicas",
        "dist.broadcast",
    ),
    "one partition": Fault("by_hand", ((".use(rank)", ".use(0)"),), "same work", "the same gradients", (0, 1)),
    "gradients in another order": Fault(
        "by_hand",
        (("in model.parameters():", "in list(model.parameters())[:: 1 - 2 * dist.get_rank()]:"),),
        "failed",
        "Mismatch",
        None,
        backends=("ringdp",),
    ),
    "a shard's rank raises": Fault(
        "fsdp2",
        ((_BACKWARD, _on_rank_1(8, "raise ValueError('no such shard')") + _BACKWARD),),
        "failed",
        "rank 1 ended with ValueError at train.py, line ",
        None,
    ),
}

_NO_SYNC = "        with nullcontext() if model.require_backward_grad_sync else model.no_sync():\n"
HEALTHY: dict[str, tuple[str, Change]] = {
    "tutorial": ("tutorial", ()),
    "persistent workers": (
        "tutorial",
        (("shuffle=False, sampler", "num_workers=1, persistent_workers=True, shuffle=False, sampler"),),
    ),
    "ringdp's wrapper": ("tutorial", (("from torch.nn.parallel import D", "from ringdp import D"),)),
    "weights clamped and averaged": (
        "tutorial",
        (
            (
                _STEP,
                f"{_STEP}        with torch.no_grad():\n            for p in self.model.parameters():\n"
                "                p.clamp_(-0.2, 0.2)\n",
            ),
        ),
    ),
    "ZeroRedundancyOptimizer": (
        "tutorial",
        (
            ("import time\n\n", "import time\n\nfrom torch.distributed.optim import ZeroRedundancyOptimizer as Zero\n"),
            (
                "torch.optim.SGD(model.parameters(), lr=1e-3)",
                "Zero(model.parameters(), torch.optim.Adam, lr=1e-3)",
            ),
        ),
    ),
    "gpt": ("gpt", ()),
    "dropout": ("gpt", (("dropout=0.0", "dropout=0.1"),)),
    "no_sync": ("gpt", (("        with nullcontext():\n", _NO_SYNC),)),
    "by hand": ("by_hand", ()),
    "FSDP2": ("fsdp2", ()),
}


def script(folder: Path, name: str, change: Change) -> Path:
    """A copy of it with the change."""
    text = (FOLDER / f"{name}.py").read_text()
    for old, new in change:
        assert old in text, f"{name} has no {old!r}"
        text = text.replace(old, new)
    file = folder / "train.py"
    file.write_text(text)
    return file
