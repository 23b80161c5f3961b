"""RINGDP_WATCH=1: ringdp.watch() without a change to the script."""

from __future__ import annotations

SCRIPT = """
import os, sys
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook
loaded = "ringdp.tools.watch.switch" in sys.modules
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
dist.init_process_group("{backend}", store=store, rank=0, world_size=1)
kinds = [torch.nn.parallel.DistributedDataParallel]
if "{backend}" == "ringdp":
    import ringdp
    kinds.append(ringdp.DistributedDataParallel)
register_optimizer_step_pre_hook(lambda *_: None)  # torch goes through a changing dictionary
for kind in kinds:
    ddp = kind(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(3):
        ddp(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    watching = sys.modules.get("ringdp.tools.watch.watch")
    print(loaded, [watch.watches(ddp) for watch in watching.running()] if watching else None)
dist.destroy_process_group()
"""


def test_every_wrapper_is_watched_whatever_the_backend(run_python):
    for backend, lines in (("gloo", ["True [True]"]), ("ringdp", ["True [True]", "True [False, True]"])):
        result = run_python(SCRIPT.format(backend=backend), RINGDP_WATCH="1")
        assert result.returncode == 0 and result.stdout.splitlines() == lines, result.stderr
        assert "ringdp" not in result.stderr


def test_without_it_nothing_is_loaded(run_python):
    result = run_python("import sys, torch; print([m for m in sys.modules if m.startswith('ringdp.')])")
    assert "tools" not in result.stdout


def test_a_job_without_a_wrapper_ends_as_always(run_python):
    result = run_python(
        "import torch; torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1).step()", RINGDP_WATCH="1"
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_bad_value_is_named_and_torch_still_imports(run_python):
    result = run_python("import torch; print(1)", RINGDP_WATCH="yes")
    assert result.stdout == "1\n"
    assert "invalid value 'yes' for RINGDP_WATCH (expected one of: 0, 1)" in result.stderr
