"""Logging data: torch's keys, from ringdp's reducer."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from ranks import BACKENDS, HERE, group_of
from ringdp.ddp.wrapper import DistributedDataParallel
from small_models import fresh, loss_of
from torch.nn.parallel import DistributedDataParallel as Stock


def logged(cls: type, backend: str, steps: int) -> dict[str, object]:
    ddp = cls(fresh(), process_group=group_of(backend))
    for step in range(steps):
        loss_of(ddp, HERE.rank, step, 0).backward()
        ddp.zero_grad()
    return ddp._get_ddp_logging_data()


def ours(backend: str, steps: int) -> dict[str, object]:
    return logged(DistributedDataParallel, backend, steps)


def stock(backend: str, steps: int) -> dict[str, object]:
    return logged(Stock, backend, steps)


def test_torchs_keys_are_there_with_torchs_values(pair):
    for mine, theirs in zip(pair.run(ours, "gloo", 5), pair.run(stock, "gloo", 5), strict=True):
        assert set(theirs) <= set(mine)
        equal = ["world_size", "rank", "module_name", "dtypes", "backend_name", "bucket_cap_bytes", "iteration"]
        equal += ["total_parameter_size_bytes", "num_parameter_tensors", "has_rebuilt_buckets", "device_ids"]
        equal += ["broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "output_device"]
        assert {key: mine[key] for key in equal} == {key: theirs[key] for key in equal}


@pytest.mark.parametrize("backend", BACKENDS)
def test_times_fit_together(pair, backend):
    for log in pair.run(ours, backend, 4):
        hidden = log["avg_backward_compute_comm_overlap_time"]
        assert 0 <= hidden <= min(log["avg_backward_compute_time"], log["avg_backward_comm_time"])
        order = ["forward_compute_time_start", "backward_compute_time_start", "backward_comm_time_start"]
        assert sorted(order, key=lambda key: log[key]) == order
        assert log["backend_name"] == backend


def sampled(rate: int, steps: int) -> list[int]:
    """On a rank: which steps were noted."""
    ddp = DistributedDataParallel(fresh())
    ddp._set_ddp_runtime_logging_sample_rate(rate)
    noted = []
    for step in range(steps):
        loss_of(ddp, HERE.rank, step, 0).backward()
        noted.append(ddp._get_ddp_logging_data().get("iteration", 0))
    return noted


def test_steps_are_sampled_after_the_first_ten(world_of):
    assert world_of(1).run(sampled, 3, 16) == [[*range(11), 10, 12, 12, 12, 15]]


def error_and_hook() -> tuple[object, object, object]:
    ddp = DistributedDataParallel(fresh())
    with suppress(TypeError):
        ddp.register_comm_hook(None, "no hook")
    ddp.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
    log = ddp._get_ddp_logging_data()
    return log["has_error"], log["error"], log["comm_hook"]


def test_errors_and_hooks_are_noted(world_of):
    has_error, error, hook = world_of(1).run(error_and_hook)[0]
    assert has_error == 1 and "must be callable" in error and "lambda" in hook


def error_of_the_reducer() -> tuple[object, object, object]:
    ddp = DistributedDataParallel(fresh())
    loss_of(ddp, 0, 0, 0).backward()
    with suppress(RuntimeError):
        ddp._set_static_graph()
    log = ddp._get_ddp_logging_data()
    return log["has_error"], log["error"], log["iteration"]


def test_errors_of_the_reducer_are_noted(world_of):
    has_error, error, iteration = world_of(1).run(error_of_the_reducer)[0]
    assert (has_error, iteration) == (1, 1) and "before training loop starts" in error
