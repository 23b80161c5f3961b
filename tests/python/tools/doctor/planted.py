"""Faults, each a patch of ringdp.examples.train_ddp: lines and what stands in their place. Worlds of two ranks."""

from __future__ import annotations

from pathlib import Path

CLEAN = Path(__file__).resolve().parents[4] / "python" / "ringdp" / "examples" / "train_ddp.py"
ARGUMENTS = ["--sequences", "160", "--epochs", "100"]  # 20 steps of 4 sequences per epoch
_STEP = "            loss = one_step(model, batch, optimizer, criterion)\n"
_MADE = "    criterion = nn.CrossEntropyLoss()\n"
_TRAIN = "def train(options"
_TIME = ("import sys\n", "import sys\nimport time\n")
_WIDTH = "WIDTH = 32, 16, 32"
_OVER_TCP = (_TRAIN, f"os.environ['RINGDP_TRANSPORT'] = 'tcp'\n\n\n{_TRAIN}")
# 25 MB of gradients of one sequence: where nothing hides the exchange, it is a third of a step on an idle machine, too.
_MOSTLY_EXCHANGE = ((_WIDTH, "WIDTH = 32, 16, 512"), ("RATE = 4,", "RATE = 1,"), _OVER_TCP)
_VIEW = "        gradient_as_bucket_view=True,\n"

Patch = tuple[tuple[str, str], ...]


# On rank 1: as long as two of its steps, which no noise of a busy machine is, and at least so many seconds.
_LAG = """def lag(least, ended=[float("inf")]):
    time.sleep(int(os.environ["RANK"]) * max(least, 2 * (time.monotonic() - ended[0])))
    ended[0] = time.monotonic()


"""


def _slow_batches(seconds: float) -> Patch:
    function = f"{_LAG}def slowly(samples):\n    lag({seconds})\n"
    function += "    return torch.utils.data.default_collate(samples)\n"
    given = ("sampler=sampler,\n", "sampler=sampler,\n        collate_fn=slowly,\n")
    return (_TIME, given, (_TRAIN, f"{function}\n\n{_TRAIN}"))


WRAPPERS: dict[str, Patch] = {
    "stock": (),
    "ringdp": (("from torch.nn.parallel import Distributed", "from ringdp import Distributed"),),
}
HARMLESS: dict[str, Patch] = {
    "wide": ((_WIDTH, "WIDTH = 32, 16, 128"),),  # 1.6 MB of gradients: more than one bucket
    "own dropout": (("dropout=0.0", "dropout=0.1"), (_MADE, f"{_MADE}    torch.manual_seed(1 + rank)\n")),
}
FAULTS: dict[str, Patch] = {
    "same dropout": (("dropout=0.0", "dropout=0.1"),),
    "loader sleeps": (
        *_slow_batches(0.15),
        ("RATE = 4, 2, 100", "RATE = 4, 0, 100"),
        ("persistent_workers=True", "persistent_workers=False"),
    ),
    "workers sleep": _slow_batches(0.4),  # of which there are two
    "backward sleeps": (
        _TIME,
        (_TRAIN, f"{_LAG}{_TRAIN}"),
        (_MADE, f"{_MADE}    model.module.head.weight.register_hook(lambda g: lag(0.15))\n"),
    ),
    "threads": ((_MADE, f"    torch.set_num_threads(8)\n{_MADE}"),),
    "pinned": ((_MADE, f"    os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})\n{_MADE}"),),
    "over tcp": (_OVER_TCP,),
    "plain loader": (("        sampler=sampler,\n", "        shuffle=True,\n"),),
    "no set_epoch": (("        sampler.set_epoch(epoch)  #", "        #"),),
    "one bucket": (*_MOSTLY_EXCHANGE, (_VIEW, f"{_VIEW}        bucket_cap_mb=500,\n")),
    "no overlap": (*_MOSTLY_EXCHANGE, (_VIEW, f"{_VIEW}        overlap=False,\n")),
    "partial layer": (
        ("+ self.places", "+ (self.places if dist.get_rank() else 0)"),
        ("static_graph=True", "find_unused_parameters=True"),
    ),
    "noisy kernel": (("self.tokens(x)", "self.tokens(x) * (1 + int.from_bytes(os.urandom(2), 'big') * 1e-6)"),),
    "odd buffer": ((_STEP, f"            dist.all_reduce(torch.ones(3 + rank * (epoch == 1)))\n{_STEP}"),),
    "group order": (
        (_MADE, f"    groups = [dist.new_group(backend='gloo') for _ in range(2)]\n{_MADE}"),
        (
            _STEP,
            "            for group in (groups if rank else groups[::-1]):\n"
            "                dist.all_reduce(torch.ones(3), group=group, async_op=True)\n"
            f"{_STEP}",
        ),
    ),
    "killed": ((_STEP, f"            if rank and epoch:\n                os.kill(os.getpid(), 9)\n{_STEP}"),),
    "hang": (_TIME, (_STEP, f"            time.sleep(600 * rank * (epoch == 1))\n{_STEP}")),
}


def script(folder: Path, *changes: str, wrapper: str = "stock") -> Path:
    """A copy of the example with these changes, of FAULTS or HARMLESS."""
    text = CLEAN.read_text()
    patches = [WRAPPERS[wrapper], *(({**FAULTS, **HARMLESS})[change] for change in changes)]
    for old, new in dict.fromkeys(pair for patch in patches for pair in patch):
        assert old in text, f"{changes}: the example has no {old!r}"
        text = text.replace(old, new)
    file = folder / "train.py"
    file.write_text(text)
    return file
