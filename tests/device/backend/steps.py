"""On a rank: buckets that are summed and stepped in one call of the device, and the same on the CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from exchanges import values
from native import bits
from ranks import HERE
from stand_in import StandIn, backend_of

# lr, beta1, beta2, eps, weight_decay, decoupled, amsgrad, maximize
ADAMW = (1e-2, 0.9, 0.999, 1e-8, 0.1, True, False, False)
PLAIN = (3e-3, 0.3, 0.99, 1e-6, 0.0, False, True, True)
COUPLED = (3e-3, 0.9, 0.99, 1e-6, 0.1, False, False, False)
NAMES = ("lr", "beta1", "beta2", "eps", "weight_decay", "decoupled", "amsgrad", "maximize")
# Offset, elements, number of the step, settings: no whole packs, padding, alone in a block, across pieces of a window.
PIECES = [(0, 1000, 1, ADAMW), (1024, 1, 7, PLAIN), (2048, 3071, 2, COUPLED)]
PART = 6144


def pieces_for(part: int) -> list[tuple[int, int, int, tuple[Any, ...]]]:
    """The same in every rank's part; the last one ends with it."""
    return [*PIECES, (PART, part - PART, 3, ADAMW)] if part > PART else PIECES


class Bucket:
    """Everybody's numbers, alike on all ranks, on the CPU. `step` changes them as one process does."""

    def __init__(self, part: int = PART, salt: int = 0) -> None:
        self.part, self.pieces = part, pieces_for(part)
        padding = torch.ones(part, dtype=torch.bool)
        for offset, count, _, _ in self.pieces:
            padding[offset : offset + count] = False
        padding = padding.repeat(HERE.size)
        self.gradients = [values(part * HERE.size, torch.float32, salt + r) for r in range(HERE.size)]
        self.parameters = values(part * HERE.size, torch.float32, salt + 50)
        for tensor in (*self.gradients, self.parameters):
            tensor[padding] = 0
        self.state = [[self._state(r, piece) for piece in self.pieces] for r in range(HERE.size)]

    @staticmethod
    def _state(rank: int, piece: tuple[int, int, int, tuple[Any, ...]]) -> list[torch.Tensor]:
        states = 3 if piece[3][6] else 2
        return [values(piece[1], torch.float32, 60 + 10 * rank + k).abs() for k in range(states)]

    def step(self, divisor: float) -> None:
        """Summed in rank order, divided once, stepped by the CPU's fastest kernel."""
        from ringdp import _native

        mean = self.gradients[0].clone()
        for gradient in self.gradients[1:]:
            mean += gradient
        mean /= divisor
        for rank, states in enumerate(self.state):
            for (offset, count, number, settings), state in zip(self.pieces, states, strict=True):
                begin = rank * self.part + offset
                given = dict(zip(NAMES, settings, strict=True))
                own = [self.parameters[begin : begin + count], *state, *([[]] * (3 - len(state)))]
                lists = [[one] if torch.is_tensor(one) else one for one in own]
                steps = _native.load().adam_steps(*lists, [float(number)], fastest=True, **given)
                steps.run([0], [mean[begin : begin + count]])


class OnDevice:
    """What this rank has of a bucket there. whole: all parameters, else its part of them."""

    def __init__(self, gpu: StandIn, bucket: Bucket, *, whole: bool = True) -> None:
        own = slice(None) if whole else slice(HERE.rank * bucket.part, (HERE.rank + 1) * bucket.part)
        self.bucket, self.own = bucket, own
        self.gradients = gpu.put(bucket.gradients[HERE.rank])
        self.parameters = gpu.put(bucket.parameters[own])
        self.state = [[gpu.put(one) for one in state] for state in bucket.state[HERE.rank]]

    def step(self, group: dist.ProcessGroup, divisor: float) -> dist.Work:
        """Begins it."""
        from ringdp import _native

        pieces = [(o, s, n, given) for (o, _, n, given), s in zip(self.bucket.pieces, self.state, strict=True)]
        sink = _native.load().device_sink(self.parameters, pieces)
        return backend_of(group).reduce_scatter_step(self.gradients, divisor, sink)

    def differences(self) -> list[str]:
        """From the bucket on the CPU, to the last bit."""
        wrong = [] if bits(self.parameters) == bits(self.bucket.parameters[self.own]) else ["parameters"]
        for number, (ours, right) in enumerate(zip(self.state, self.bucket.state[HERE.rank], strict=True)):
            wrong += [f"state {number}.{k}" for k in range(len(ours)) if bits(ours[k]) != bits(right[k])]
        return wrong
