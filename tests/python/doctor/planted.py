"""Faults, each a patch of the clean script: lines and what stands in their place. Worlds of two ranks."""

from __future__ import annotations

from pathlib import Path

CLEAN = Path(__file__).with_name("clean_script.py")
_STEP = "            optimizer.zero_grad()\n"
_MADE = "    model = wrapped(Net())\n"
_RELU = "        x = torch.relu(self.first(x))\n"

# fault -> (old, new), ...
PATCHES: dict[str, tuple[tuple[str, str], ...]] = {
    "same dropout": (("torch.manual_seed(1 + rank)", "torch.manual_seed(1)"),),
    "loader sleeps": (
        ("sampler=sampler)\n", "sampler=sampler, collate_fn=slowly)\n"),
        (
            "def main() -> None:\n",
            "def slowly(samples):\n    time.sleep(0.15 * dist.get_rank())\n"
            "    return torch.utils.data.default_collate(samples)\n\n\ndef main() -> None:\n",
        ),
    ),
    "backward sleeps": (
        (_MADE, f"{_MADE}    model.module.head.weight.register_hook(lambda g: time.sleep(0.15 * rank))\n"),
    ),
    "threads": ((_MADE, f"    torch.set_num_threads(8)\n{_MADE}"),),
    "pinned": ((_MADE, f"    os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})\n{_MADE}"),),
    "plain loader": (("batch_size=BATCH, sampler=sampler", "batch_size=BATCH, shuffle=True"),),
    "no set_epoch": (("        sampler.set_epoch(epoch)\n", ""),),
    "one bucket": (
        ("WIDTH, LR = 100, 8, 64", "WIDTH, LR = 100, 8, 1200"),
        ("DistributedDataParallel(model)", "DistributedDataParallel(model, bucket_cap_mb=500)"),
    ),
    "no overlap": (
        ("WIDTH, LR = 100, 8, 64", "WIDTH, LR = 100, 8, 1200"),
        ("ringdp.DistributedDataParallel(model)", "ringdp.DistributedDataParallel(model, overlap=False)"),
    ),
    "partial layer": (
        ("        x = torch.relu(self.second(x))\n", "        x = self.second(x) if dist.get_rank() else x\n"),
        ("DistributedDataParallel(model)", "DistributedDataParallel(model, find_unused_parameters=True)"),
    ),
    "noisy kernel": ((_RELU, f"{_RELU}        x = x * (1 + int.from_bytes(os.urandom(2), 'big') * 1e-6)\n"),),
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
    "hang": ((_STEP, f"            time.sleep(600 * rank * (epoch == 1))\n{_STEP}"),),
}


def script(folder: Path, *faults: str) -> Path:
    """A copy of the clean script with these faults."""
    text = CLEAN.read_text()
    for fault in faults:
        for old, new in PATCHES[fault]:
            assert old in text, f"{fault}: the clean script has no {old!r}"
            text = text.replace(old, new)
    file = folder / "train.py"
    file.write_text(text)
    return file
