"""What a reducer tells about itself: bytes, memory, order, numbers."""

from __future__ import annotations

import torch
from rig import backward, reducer_of


def facts(backend: str) -> tuple[list[tuple[int, int]], dict[str, int], list[int], str]:
    parameters = [torch.zeros(shape, requires_grad=True) for shape in ([5], [7], [6])]
    reducer = reducer_of(parameters, backend, bucket_limits=[40])
    backward(reducer, parameters, [torch.ones(5), torch.ones(7), torch.ones(6)])
    sizes = [(bucket["bytes"], bucket["memory_bytes"]) for bucket in reducer.buckets()]
    return sizes, reducer.numbers(), sorted(reducer.arrival_order()), reducer.mean_name()


def test_bytes_are_those_of_the_gradients_and_of_the_memory(trio):
    numbers = {"rebuilt": 0, "unused_changed": 0, "launched": 2}
    # The last one holds one gradient, which is reduced where it lies.
    assert trio.run(facts, "ringdp") == [([(52, 52), (20, 0)], numbers, [0, 1, 2], "fused")] * 3
    # Exchanged shards: memory is a multiple of three elements.
    assert trio.run(facts, "gloo") == [([(52, 60), (20, 0)], numbers, [0, 1, 2], "exchanged")] * 3


def changing_graph() -> list[int]:
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, find_unused=True)
    changed = []
    for used in ([0], [0], [1]):
        loss = sum(parameters[index].sum() for index in used)
        reducer.prepare_for_forward()
        reducer.prepare_for_backward([loss])
        loss.backward()
        changed.append(reducer.numbers()["unused_changed"])
    return changed


def test_a_graph_that_changes_is_noticed(world_of):
    assert world_of(2).run(changing_graph) == [[0, 0, 1]] * 2
