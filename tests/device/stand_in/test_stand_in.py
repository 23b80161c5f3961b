"""The stand-in as a device of torch: streams, captures, devices and memory behave as CUDA's where it matters."""

from __future__ import annotations

import os
import time

import torch
from stand_in import TYPE, StandIn, error_of, here, loaded


def replayed(library: str) -> list[float]:
    """On a rank: what is captured does not run, and is run by every replay."""
    gpu = here(library)
    source, target = gpu.put(torch.ones(4)), gpu.put(torch.zeros(4))
    with gpu.capturing() as graph:
        target.copy_(source, non_blocking=True)
    seen = [float(target.cpu()[0])]
    for value in (5.0, 7.0):
        source.fill_(value)
        graph.replay()
        seen.append(float(target.cpu()[0]))
    return seen


def joined(library: str) -> tuple[float, str, float]:
    """On a rank: a stream that is drawn into a capture by an event has to be waited for, and is free afterwards."""
    gpu = here(library)
    source, target = gpu.put(torch.ones(4)), gpu.put(torch.zeros(4))
    event = torch.Event(device=TYPE)

    def capture(waits: bool) -> object:
        with gpu.capturing() as graph:
            event.record()
            with gpu.stream(1):
                event.wait()
                target.copy_(source, non_blocking=True)
                event.record()
            if waits:
                event.wait()
        return graph

    error = error_of(lambda: capture(waits=False))
    graph = capture(waits=True)
    early = float(target.cpu()[0])
    graph.replay()
    gpu.synchronize()  # no event orders the other stream behind the replay
    with gpu.stream(1):
        source.fill_(2.0)
        gpu.synchronize(1)
    return early, error, float(target.cpu()[0])


def across_devices(library: str) -> tuple[int, float, float]:
    """On a rank: a copy to another device comes behind what is queued on the first."""
    gpu = here(library)
    with gpu.device(1):
        there = torch.zeros(4, device=TYPE)
        gpu.hold()
        there.fill_(3.0)
        early = torch.zeros(4, device=f"{TYPE}:0")
        late = early.clone()
        late.copy_(there, non_blocking=True)
        gpu.go()
    return there.device.index, float(early.cpu()[0]), float(late.cpu()[0])


def memory_used_again(library: str) -> tuple[bool, bool]:
    """On a rank: memory is given to others once the stream has come by, not before."""
    gpu = here(library)
    size = 100_003  # no other test's
    first = torch.zeros(size, device=TYPE)
    place = first.data_ptr()
    gpu.hold()
    first.fill_(1.0)
    del first
    second = torch.empty(size, device=TYPE)
    gpu.go()
    gpu.synchronize()
    third = torch.empty(size, device=TYPE)
    return second.data_ptr() == place, third.data_ptr() == place


def in_one_queue(library: str) -> tuple[bool, float]:
    """On a rank: whether a stream goes on while another one of its hardware queue waits, and what it did then."""
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    loaded(library)
    gpu = StandIn.__new__(StandIn)
    gpu.functions = loaded(library)
    tensor = torch.zeros(4, device=TYPE)
    gpu.hold(1)
    with gpu.stream(2):
        tensor.fill_(3.0)
    time.sleep(0.1)
    went_on = gpu.is_idle(2)
    gpu.go(1)
    gpu.synchronize(2)
    return went_on, float(tensor.cpu()[0])


def with_a_bad_setting(library: str) -> str:
    os.environ["STAND_IN_DEVICES"] = "many"
    loaded(library)
    return error_of(lambda: torch.zeros(4, device=TYPE))


def test_a_capture_is_replayed(pair, stand_in):
    assert pair.run(replayed, stand_in) == [[0.0, 5.0, 7.0]] * 2


def test_a_stream_that_joins_a_capture_has_to_be_waited_for(pair, stand_in):
    for early, error, late in pair.run(joined, stand_in):
        assert (early, late) == (0.0, 1.0)
        assert "was not waited for" in error


def test_copies_between_devices_are_ordered(pair, stand_in):
    assert pair.run(across_devices, stand_in) == [(1, 0.0, 3.0)] * 2


def test_memory_is_used_again_behind_the_stream(pair, stand_in):
    assert pair.run(memory_used_again, stand_in) == [(False, True)] * 2


def test_streams_of_one_hardware_queue_wait_for_each_other(run_on_fresh_ranks, stand_in):
    assert run_on_fresh_ranks(1).run(in_one_queue, stand_in) == [(False, 3.0)]


def test_a_bad_setting_is_named(run_on_fresh_ranks, stand_in):
    [error] = run_on_fresh_ranks(1).run(with_a_bad_setting, stand_in)
    assert "invalid value 'many' for STAND_IN_DEVICES (expected 0..8)" in error
