"""CUDA's streams and clocks by way of torch: what the C interface takes and does not make."""

from __future__ import annotations

import torch


class CudaPlace:
    """Device 0. Streams are kept alive here and known by their cudaStream_t."""

    def __init__(self) -> None:
        torch.cuda.init()
        self._streams: list[torch.cuda.Stream] = []

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


class _Memory:
    """Bytes at a device address, as torch.as_tensor takes them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def tensor_at(address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """`count` elements of device memory that outlives the tensor."""
    return torch.as_tensor(_Memory(address, count * dtype.itemsize), device="cuda").view(dtype)
