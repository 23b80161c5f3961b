"""torch's DistributedTest class bound to the backend named by CONFORMANCE_BACKEND; runner and ranks import it.

CONFORMANCE_DDP=ringdp puts ringdp's DistributedDataParallel in place of torch's.

torch decides at import, from the variable BACKEND, which tests exist. So its module is imported as if for gloo, which
is eligible for all that a CPU can run, with CONFORMANCE_DEVICE=cuda as if for NCCL, and is told the real name
afterwards.
"""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

BACKEND = os.environ.get("CONFORMANCE_BACKEND", "ringdp")
DDP = os.environ.get("CONFORMANCE_DDP", "stock")
ELIGIBLE = "nccl" if os.environ.get("CONFORMANCE_DEVICE") == "cuda" else "gloo"
os.environ["BACKEND"] = ELIGIBLE
os.environ.setdefault("WORLD_SIZE", "2")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

if BACKEND == "ringdp":
    import ringdp

    ringdp.register()

from torch.testing._internal import common_distributed  # noqa: E402

for names in common_distributed.DistTestCases.backend_feature.values():
    if ELIGIBLE in names:
        names.add(BACKEND)

from torch.testing._internal.distributed import distributed_test as shipped  # noqa: E402

os.environ["BACKEND"] = shipped.BACKEND = BACKEND
# The profiler's tests look for events only of backends in these lists.
for known in (shipped.PROFILING_SUPPORTED_BACKENDS, shipped.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
    if BACKEND not in known:
        known.append(BACKEND)


if DDP == "ringdp":
    import ringdp

    for module in (torch.nn.parallel, shipped):
        module.DistributedDataParallel = ringdp.DistributedDataParallel


class _NoGloo(dist.ProcessGroupGloo if dist.is_gloo_available() else object):
    """In place of ProcessGroupGloo, so that nothing passes with gloo's help."""

    def __init__(self, *_: object, **__: object) -> None:
        raise AssertionError(f"a ProcessGroupGloo was made in a test of {BACKEND}")


def forbid_gloo() -> None:
    """For the rest of this process."""
    if BACKEND == "gloo":
        return
    c10d = dist.distributed_c10d
    real, wrap = c10d.ProcessGroupGloo, c10d._create_process_group_wrapper

    def wrap_over_gloo(*args: Any, **kwargs: Any) -> Any:
        # TORCH_DISTRIBUTED_DEBUG=DETAIL: torch compares the ranks' calls over a gloo group of its own.
        with mock.patch.object(c10d, "ProcessGroupGloo", real):
            return wrap(*args, **kwargs)

    c10d._create_process_group_wrapper = wrap_over_gloo
    dist.ProcessGroupGloo = c10d.ProcessGroupGloo = _NoGloo


class TestSubject(shipped.TestDistBackend, shipped.DistributedTest._DistTestBase):
    """The shipped tests. `start` makes a rank's process object and is set by the runner."""

    start: Any = None

    def setUp(self) -> None:
        """As for the shipped classes: directories first, then the ranks."""
        super().setUp()
        self._start_processes(type(self).start)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **kwargs: Any) -> None:
        # The module read this variable when the ranks' parent imported it, before the test had a directory.
        shipped.INIT_METHOD = os.environ.get("INIT_METHOD", "env://")
        super()._run(rank, test_name, file_name, pipe, **kwargs)

    def _test_accumulate_gradients_no_sync(self, *args: Any, **kwargs: Any) -> None:
        # The body makes a CPU model only under gloo's name, and no group under any.
        with mock.patch.object(shipped, "BACKEND", "gloo"):
            super()._test_accumulate_gradients_no_sync(*args, **kwargs)

    def _test_all_reduce_helper(
        self, group: Any, group_id: Any, rank: int, op: Any, *values: Any, **kwargs: Any
    ) -> None:
        # The shipped helper is given the expected value and never looks at the result.
        expected, call = values[2], self.call_dist_op

        def compared(name: str, is_async: bool, function: Any, tensor: torch.Tensor, *rest: Any, **options: Any) -> Any:
            returned = call(name, is_async, function, tensor, *rest, **options)
            self.assertEqual(tensor, torch.full_like(tensor, expected))
            return returned

        with mock.patch.object(self, "call_dist_op", compared):
            super()._test_all_reduce_helper(group, group_id, rank, op, *values, **kwargs)
