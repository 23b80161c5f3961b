"""CUDA graphs of device plans: SPIN is captured and replayed, as the device counts its launches; STREAM refuses."""

from __future__ import annotations

import one_gpu as gpu
import pytest
import torch

gpu.require(cuda=True)
from devices.core import SPIN, STREAM, CoreError
from devices.one_process import OneProcess
from devices.place import CudaPlace
from devices.plan import Problem, plan_of


def captured(ranks: OneProcess, problem: Problem, rank: int) -> torch.cuda.CUDAGraph:
    """This rank's launch as a graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=ranks.place.stream(rank), capture_error_mode="thread_local"):
        ranks.launch_on(ranks.streams[rank], plan_of(problem, rank), problem.divisor)
    return graph


@pytest.mark.parametrize("algorithm", ["direct", "one_shot", "push", "ring/rank"])
@pytest.mark.parametrize("world", [2, 4])
def test_a_graph_is_replayed_with_other_inputs(world, algorithm):
    problem = Problem(algorithm=algorithm, world=world, count=4 * 1001, op="AVG")
    with OneProcess(gpu.open_core(), CudaPlace(), world, [problem], SPIN) as ranks:
        ranks.launch(problem)  # eagerly, so that replays do not begin with the first epoch
        graphs = [captured(ranks, problem, rank) for rank in range(world)]
        for turn in range(3):
            inputs = gpu.inputs_of(problem, str(turn))
            for rank, tensor in enumerate(inputs):
                ranks.put(ranks.input(rank), gpu.bytes_of(tensor))
            for rank, graph in enumerate(graphs):
                with torch.cuda.stream(ranks.place.stream(rank)):
                    graph.replay()
            for rank in range(world):
                assert ranks.get(ranks.output(rank), inputs[0].nbytes) == gpu.expected(problem, inputs, rank)


def test_stream_waits_are_not_captured():
    problem = Problem(count=64)
    with OneProcess(gpu.open_core(), CudaPlace(), 2, [problem], STREAM) as ranks:
        ranks.launch(problem)  # the host counts launches from 1
        with pytest.raises(CoreError, match="STREAM cannot be captured"):
            captured(ranks, problem, 0)
        ranks.launch(problem)  # the stream is as it was
        ranks.place.synchronize()
