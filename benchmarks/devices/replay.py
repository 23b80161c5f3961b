"""Times work of several streams of one process by graphs: a launch costs the host more than a small call takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

GATE_CYCLES = 1_000_000  # half a millisecond in which all graphs are launched


class Replay:
    """`call(k)` queues one call on stream k. A graph per stream holds `calls` of them; all start at once."""

    def __init__(self, streams: Sequence[torch.cuda.Stream], call: Callable[[int], None], calls: int) -> None:
        self._streams, self._graphs = streams, []
        for k, stream in enumerate(streams):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                for _ in range(calls):
                    call(k)
            self._graphs.append(graph)

    def seconds(self) -> float:
        """From the moment that all streams are let go until the last of them is done."""
        gate, start, stop = torch.cuda.current_stream(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(GATE_CYCLES)
        start.record(gate)
        for stream, graph in zip(self._streams, self._graphs, strict=True):
            stream.wait_event(start)
            with torch.cuda.stream(stream):
                graph.replay()
            gate.wait_stream(stream)
        stop.record(gate)
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3
