"""The definition of `DistributedDataParallel(compress=...)`: a process that plays the ranks, parameter by parameter."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringdp.compress.auto import Kind, Schedule
from ringdp.compress.codec import Codec, in_blocks
from ringdp.compress.means import as_matrix, first_factor, is_factored, orthogonal, refreshed
from ringdp.compress.methods import Auto, Method, PowerSGD, fixed
from ringdp.compress.one_bit import OneBitAdam

Gradients = Mapping[str, Tensor]


class PlayedRanks:
    """Of so many ranks. residuals: by rank and parameter; of means, the last row. ValueError: nobody has decided."""

    def __init__(self, method: Method, ranks: int, model: nn.Module, optimizer: Optimizer) -> None:
        if isinstance(method, Auto) and not method.decisions:
            raise ValueError(
                f"one_process: compress={method}: what to do was decided by times of another run: give "
                "compress=Auto(method, decisions), with the decisions of its ledger"
            )
        self._schedule = Schedule([*method.decisions] if isinstance(method, Auto) else [(0, "coded")])
        self._method, self.steps = fixed(method), 0
        self._optimizer = optimizer if isinstance(optimizer, OneBitAdam) else None
        self._parameters = dict(model.named_parameters())
        self.residuals: list[dict[str, Tensor]] = [{} for _ in range(ranks + 1)]
        self.factors: dict[str, Tensor] = {}

    @torch.no_grad()
    def mean(self, by_rank: Sequence[Gradients]) -> dict[str, Tensor]:
        """Of one step, in the gradients' types. ValueError names a parameter for which a rank has none."""
        found = {}
        for name in {name: None for gradients in by_rank for name in gradients}:
            if any(name not in gradients for gradients in by_rank):
                raise ValueError(f"one_process: compress={self._method}: not all ranks have a gradient of {name}")
            kind, values = self._kind(), [gradients[name].float() for gradients in by_rank]
            if self._optimizer is not None and kind is Kind.CODED:
                self._optimizer.arrive([self._parameters[name]])
                values = [self._optimizer.contribution(self._parameters[name], value) for value in values]
            of_kind = {Kind.CODED: self._mean, Kind.WHOLE: self._whole, Kind.SETTLING: self._settling}
            found[name] = of_kind[kind](name, values).view_as(values[0]).to(by_rank[0][name].dtype)
        self.steps += 1
        return found

    def _kind(self) -> Kind:
        """Of this step."""
        if self._optimizer is not None:
            return Kind.CODED if self._optimizer.is_frozen else Kind.WHOLE
        return self._schedule.kind(self.steps)

    def _mean(self, name: str, values: Sequence[Tensor]) -> Tensor:
        method, ranks = self._method, len(values)
        if not isinstance(method, PowerSGD):
            codecs = method.codecs(ranks)
            count = values[0].numel()
            blocks = [in_blocks(value.flatten(), -(-count // codecs.block), codecs.block) for value in values]
            sent = [self._coded(rank, name, value, count, codecs.contributions) for rank, value in enumerate(blocks)]
            return self._coded(-1, name, in_rank_order(sent), count, codecs.means).flatten()[:count]
        if self.steps < method.start or not is_factored(values[0].shape, method.rank):
            return in_rank_order(values)
        matrices = [as_matrix(value) for value in values]
        matrices = [m + self.residuals[r][name] if name in self.residuals[r] else m for r, m in enumerate(matrices)]
        factor = self.factors.setdefault(name, first_factor(name, matrices[0].shape[1], method))
        left = orthogonal(in_rank_order([m @ factor for m in matrices]))
        right = in_rank_order([m.t() @ left for m in matrices])
        self.factors[name] = refreshed(right, name, method)
        product = left @ right.t()
        for rank, matrix in enumerate(matrices if method.feedback else ()):
            self.residuals[rank][name] = (matrix - product).nan_to_num(0.0, 0.0, 0.0)
        return product

    def _whole(self, _: str, values: Sequence[Tensor]) -> Tensor:
        return in_rank_order(values)

    def _settling(self, name: str, values: Sequence[Tensor]) -> Tensor:
        """Residuals are zero then."""
        residuals = [of_rank.pop(name, None) for of_rank in self.residuals]
        sums = [v if e is None else v + e.view_as(v) for v, e in zip(values, residuals, strict=False)]
        mean = in_rank_order(sums)
        return mean if residuals[-1] is None else mean + residuals[-1].view_as(mean)

    def _coded(self, place: int, name: str, blocks: Tensor, count: int, codec: Codec) -> Tensor:
        """As their codes say them. count: of values; what fills up the last block is not residuals."""
        if self._method.feedback and name in self.residuals[place]:
            blocks = blocks + in_blocks(self.residuals[place][name], len(blocks), codec.block)
        said = codec.decode(codec.encode(blocks))
        if self._method.feedback:
            self.residuals[place][name] = (blocks - said).nan_to_num(0.0, 0.0, 0.0).flatten()[:count]
        return said


def in_rank_order(values: Sequence[Tensor]) -> Tensor:
    """((v0 + v1) + ...) / N; NaN without sign and payload."""
    mean = functools.reduce(operator.add, values) / len(values)
    return mean.masked_fill(mean.isnan(), math.nan)
