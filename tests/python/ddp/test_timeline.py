"""When buckets of the latest step were launched and reduced, the words for it, and torch's logger."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from ranks import BACKENDS, HERE, group_of
from ringdp import _native
from ringdp.ddp.timeline import BucketTimes, Explanation, StepTimes, step_times
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.tools.watch.figures import unpacked
from small_models import fresh, loss_of
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as Stock

_C = _native.load()


def times(backward: float, *buckets: tuple[float, float]) -> StepTimes:
    return StepTimes(1, 0.5, backward, 0.1, tuple(BucketTimes(begin, begin, end) for begin, end in buckets))


@pytest.mark.parametrize(
    ("intervals", "length"),
    [
        ([], 0),
        ([(1, 3)], 2),
        ([(1, 3), (2, 5)], 4),
        ([(4, 5), (1, 2)], 2),
        ([(1, 9), (2, 3)], 8),
        ([(3, 1)], 0),
        ([(1, 2), (3, 2.5), (2, 4)], 3),
    ],
)
def test_each_moment_counts_once(intervals, length):
    assert _C.covered(intervals, float("-inf")) == pytest.approx(length)
    later = [(begin + 7, end + 7) for begin, end in intervals]
    assert _C.covered([(-3, 7), *later], 7) == pytest.approx(length), "what came before counts for nothing"


@pytest.mark.parametrize(
    ("buckets", "communication", "exposed", "overlap"),
    [
        ([(1, 2), (3, 4)], 2, 0, 1),
        ([(1, 5), (4, 8)], 7, 3, 4 / 7),
        ([(5, 6), (6, 9)], 4, 4, 0),
        ([], 0, 0, 1),
    ],
)
def test_exposed_is_what_comes_after_the_last_gradient(buckets, communication, exposed, overlap):
    step = times(5, *buckets)
    assert step.communication == pytest.approx(communication)
    assert step.exposed == pytest.approx(exposed)
    assert step.overlap == pytest.approx(overlap)


def test_no_overlap_is_said_in_a_plain_sentence():
    assert times(5, (5, 6)).verdict.startswith("0 % of the communication was hidden")
    assert "57%" in str(times(5, (1, 5), (4, 8)))
    assert "bucket 1: ready 4000.00 ms" in str(times(5, (1, 5), (4, 8)))
    assert "No step" in times(5).verdict


def test_raw_nanoseconds_become_seconds_since_backward():
    raw = {"step": 3, "forward": 1_000, "backward": 2_000, "computed": 5_000, "finished": 6_000}
    step = step_times({**raw, "buckets": [(2_500, 2_600, 4_000), (0, 0, 0)]})
    assert (step.forward, step.backward, step.wait) == pytest.approx((1e-6, 3e-6, 1e-6))
    assert step.buckets == (BucketTimes(*(pytest.approx(t) for t in (5e-7, 6e-7, 2e-6))),)


def kept(backend: str) -> tuple[list[int], bool, list[object]]:
    """On a rank: of five passes the latest three, so two steps, and what is there afterwards and after the end."""
    ddp = DistributedDataParallel(fresh(), process_group=group_of(backend))
    ddp.reducer.keep_timelines(3)
    for step in range(5):
        loss_of(ddp, HERE.rank, step, 0).backward()
    steps = _C.StepRows()
    (seconds, rows), again = steps.take(ddp.reducer, 1), steps.take(ddp.reducer, 1)
    loss_of(ddp, HERE.rank, 5, 0).backward()
    ddp.reducer.keep_timelines(0)
    loss_of(ddp, HERE.rank, 6, 0).backward()
    taken = list(unpacked(rows))
    plausible = all(
        row.data > 0  # as passes are in order
        and 0 <= row.compute <= row.seconds - row.data + 1e-9
        and 0 <= row.exposed <= row.communication <= row.seconds
        for row in taken
    )
    whole = seconds == [row.seconds for row in taken] and [row.number for row in taken] == [1, 2]
    return [row.key for row in taken], whole and plausible, [again, steps.take(ddp.reducer, 1)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_timelines_of_the_latest_passes_are_kept_until_they_are_taken(pair, backend):
    mine, theirs = pair.run(kept, backend)
    sequences, plausible, rest = mine
    assert len(sequences) == 2 and plausible and rest == [([], b"")] * 2
    assert sequences == sorted(set(sequences)) == theirs[0], "equal on all ranks"


def explained(backend: str, steps: int) -> tuple[Explanation, str]:
    ddp = DistributedDataParallel(
        fresh(), process_group=group_of(backend), bucket_cap_mb=0.005, gradient_as_bucket_view=True
    )
    for step in range(steps):
        loss_of(ddp, HERE.rank, step, 0).backward()
    told = ddp.explain()
    return told, str(told)


def test_buckets_have_names_bytes_and_memory(trio):
    gradient_bytes = sum(p.numel() * p.element_size() for p in fresh().parameters())
    names = [name for name, _ in fresh().named_parameters()]
    for backend in BACKENDS:
        for told, text in trio.run(explained, backend, 2):
            assert sorted(n for bucket in told.buckets for n in bucket.parameters) == sorted(names)
            assert sum(bucket.bytes for bucket in told.buckets) == gradient_bytes
            # One copy of the gradients: padding is at most two elements a bucket.
            copies = sum(bucket.memory_bytes or bucket.bytes for bucket in told.buckets)
            assert gradient_bytes <= copies <= gradient_bytes + 8 * len(told.buckets)
            alone = sum(bucket.bytes for bucket in told.buckets if len(bucket.parameters) == 1)
            in_place = alone if backend == "ringdp" else 0  # where ranks read each other's memory
            assert told.buffer_bytes == sum(bucket.memory_bytes for bucket in told.buckets) == copies - in_place
            assert told.rebuilt and told.times.step == 2
            assert all(bucket.parameters[0] in text for bucket in told.buckets) and "bits of one process" in text


def test_before_the_first_step(pair):
    for told, text in pair.run(explained, "ringdp", 0):
        assert not told.rebuilt and "reverse order" in text and "No step" in text
        assert "shared memory" in text and "gradients are views" in text


def explained_with(change: str) -> str:
    if change == "compress":
        ddp = DistributedDataParallel(fresh(), compress="int8", bucket_cap_mb=0.005)
    else:
        ddp = DistributedDataParallel(fresh(), bucket_cap_mb=0.005)
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    for step in range(2):
        loss_of(ddp, HERE.rank, step, 0).backward()
    return str(ddp.explain())


def test_what_a_hook_computes_is_not_called_the_mean_of_one_process(pair):
    for text in pair.run(explained_with, "compress"):
        assert "in reverse order of the parameters" in text and "one process that plays all ranks" in text
    for text in pair.run(explained_with, "hook"):
        assert "in the order in which gradients arrived" in text and "what the communication hook returns" in text


def many_parameters() -> str:
    model = torch.nn.ParameterList(torch.zeros(1) for _ in range(9))
    return str(DistributedDataParallel(model).explain())


def test_long_buckets_are_cut(world_of):
    assert "(9 parameters)" in world_of(1).run(many_parameters)[0]


# Logging data: torch's keys, from ringdp's reducer.


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
