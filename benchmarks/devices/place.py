"""CUDA by way of torch: streams, tensors at device addresses, timing by graphs, inputs whose sums are exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from devices.cell import PERIOD

FILLER_ELEMENTS, FILLERS = 1 << 26, 200  # 256 MiB of float32, read and written in a fifth of a millisecond


class CudaPlace:
    """Device 0. Streams are kept alive here and known by their cudaStream_t."""

    def __init__(self) -> None:
        torch.cuda.init()
        self._streams: list[torch.cuda.Stream] = []
        self._filler: torch.Tensor | None = None
        self._fillers = torch.cuda.Stream(priority=0)  # the lowest

    def streams(self, count: int) -> list[int]:
        """The first `count` streams of this place, the same at every call."""
        while len(self._streams) < count:
            self._streams.append(torch.cuda.Stream())
        return [stream.cuda_stream for stream in self._streams[:count]]

    def stream(self, number: int) -> torch.cuda.Stream:
        """The stream itself."""
        self.streams(number + 1)
        return self._streams[number]

    def synchronize(self) -> None:
        """Waits for all that is queued."""
        torch.cuda.synchronize()

    def finish(self, stream: int) -> None:
        """Waits for what is queued on this one."""
        torch.cuda.ExternalStream(stream).synchronize()

    def keep_busy(self) -> None:
        """Queues grids of many short blocks, tens of milliseconds of them, on a stream of the lowest priority."""
        if self._filler is None:
            self._filler = torch.zeros(FILLER_ELEMENTS, device="cuda")
            torch.cuda.synchronize()
        with torch.cuda.stream(self._fillers):
            for _ in range(FILLERS):
                self._filler.add_(1)


class _Memory:
    """Bytes at a device address, as torch.as_tensor takes them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def tensor_at(address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """`count` elements of device memory that outlives the tensor."""
    return torch.as_tensor(_Memory(address, count * dtype.itemsize), device="cuda").view(dtype)


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


def fill(tensor: torch.Tensor, rank: int) -> None:
    """This rank's input: small integers that differ from rank to rank."""
    tensor.copy_((torch.arange(tensor.numel(), device=tensor.device) + rank) % PERIOD)


def wrong_in_sum(tensor: torch.Tensor, world: int) -> int:
    """Elements that are not the sum over all ranks' inputs."""
    index = torch.arange(tensor.numel(), device=tensor.device)
    right = torch.zeros_like(tensor)
    for rank in range(world):
        right += (index + rank) % PERIOD
    return int((tensor != right).sum())
