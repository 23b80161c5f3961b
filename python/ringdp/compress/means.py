"""Means of gradients over the ranks of a group, of which less is sent; equal on all ranks.

The bits do not depend on buckets, as each parameter is compressed by itself. They do depend on the number of ranks:
residuals are a rank's own. played.py is the definition.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.compress.codec import FLOAT32, Codecs
from ringdp.compress.exchange import Allotment, Exchange, Shards, sum_in_order
from ringdp.compress.methods import Codes, Fixed, PowerSGD, TopK

Named = Mapping[str, Tensor]  # by parameter
Part = tuple[int, Tensor]  # of a parameter: the first element, and the values from there on, flat
Owners = Sequence[Mapping[str, range]]  # by rank: the elements that it owns of each parameter, if any


@dataclass
class Residuals:
    """What was left out so far, by parameter. of_rank: of its gradients, flat. of_means: of the part that it owns."""

    of_rank: dict[str, Tensor] = field(default_factory=dict)
    of_means: dict[str, Part] = field(default_factory=dict)


@dataclass
class Sent:
    """Norms of what a rank meant to send, gradients and residuals, and of what codes have left out of that."""

    meant: float = 0.0
    error: float = 0.0


class Means(Protocol):
    """Not thread-safe. factors: of PowerSGD, by parameter. waited_s: for other ranks and links, so far.

    owners: None: each rank needs whole means. Otherwise a rank needs what it owns: parts one after the other, in the
    order of ranks and of gradients, which cut a parameter at multiples of a block.
    sent: becomes what it says, of this call.
    """

    residuals: Residuals
    waited_s: float
    factors: dict[str, Tensor]

    def of(
        self, gradients: Named, step: int, owners: Owners | None = None, sent: Sent | None = None
    ) -> dict[str, Part]:
        """In step `step`, 0, 1, ..., of these parameters, in float32: what this rank needs, or more. Collective."""

    def settling(self, gradients: Named, owners: Owners | None = None) -> dict[str, Part]:
        """The same, whole, with all their residuals, which are zero then. Collective."""

    def bytes_sent(self, shapes: Mapping[str, torch.Size], step: int, owners: Owners | None = None) -> int:
        """By a rank to others."""


class Rows:
    """Flat values of several parameters in one tensor, each beginning with a block of its own."""

    def __init__(self, counts: Mapping[str, int], block: int) -> None:
        self.counts, self.offsets, self.elements, self._block = dict(counts), {}, 0, block
        for name, count in counts.items():
            self.offsets[name] = self.elements
            self.elements += -(-count // block) * block

    def joined(self, values: Mapping[str, Tensor]) -> Tensor:
        """float32, with zeros between them."""
        flat = torch.zeros(self.elements, dtype=torch.float32)
        if values:
            torch._foreach_copy_([self.part(flat, name) for name in values], [v.flatten() for v in values.values()])
        return flat

    def part(self, flat: Tensor, name: str) -> Tensor:
        """Of one parameter, a view."""
        return flat.narrow(0, self.offsets[name], self.counts[name])

    def shards(self, owners: Owners) -> Shards:
        """What each rank owns, in whole blocks."""
        blocks = (sum(-(-len(part) // self._block) for part in of_rank.values()) for of_rank in owners)
        return Shards(self.elements, self._block, (0, *accumulate(blocks)))

    def parts(self, flat: Tensor, offset: int) -> dict[str, Part]:
        """Of each parameter what lies in a range of all, given its values and where it begins; views."""
        found = {}
        for name in self.counts:
            first, count = self.within(name, offset, len(flat))
            begin = self.offsets[name] + first - offset
            found[name] = (first, flat[begin : begin + count]) if count else (0, flat[:0])
        return found

    def within(self, name: str, offset: int, length: int) -> tuple[int, int]:
        """Of the elements of a parameter: the first, and how many, that lie in a range of all."""
        begin = max(self.offsets[name], offset)
        end = min(self.offsets[name] + self.counts[name], offset + length)
        return begin - self.offsets[name], max(0, end - begin)


class _Place:
    """How means are exchanged: among the ranks of a group, None for a process alone."""

    def __init__(self, group: dist.ProcessGroup | None, codecs: Codecs) -> None:
        self.group, self.codecs = group, codecs
        self.ranks, self.rank = (group.size(), group.rank()) if group is not None else (1, 0)
        self.allotment = Allotment(self.ranks, self.ranks, codecs.block)
        self.waited_s = 0.0

    def mean(
        self, values: Tensor, residuals: Tensor | None, mean_residuals: Tensor | None, shards: Shards | None = None
    ) -> tuple[int, Tensor]:
        """Of flat values; with shards only what this rank owns, and where it begins. Residuals change in place."""
        exchange = Exchange(
            self.group,
            self.allotment,
            self.codecs,
            len(values),
            lambda _: values,
            residuals={} if residuals is None else {self.rank: residuals},
            mean_residuals=mean_residuals,
            sum_of=sum_in_order,
            shards=shards,
        )
        offset, mean = (0, exchange.mean()) if shards is None else exchange.own_means()
        self.waited_s += exchange.waited_s
        return offset, mean

    def bytes_sent(self, elements: int, shards: Shards | None = None) -> int:
        if shards is not None:
            return shards.bytes_to_owners(self.rank, self.codecs.contributions.block_bytes)
        return self.allotment.bytes_sent(self.rank, elements, self.codecs)


class CodedMeans:
    """See Means: gradients travel as codes to the owners of parts, and means as codes from them."""

    def __init__(self, group: dist.ProcessGroup | None, method: Codes | TopK) -> None:
        ranks = 1 if group is None else group.size()
        codecs = method.codecs(ranks)
        self._place, self._feedback = _Place(group, codecs), method.feedback
        self._whole = _Place(group, codecs.exact)
        self.residuals, self.factors = Residuals(), {}

    @property
    def waited_s(self) -> float:
        """See Means."""
        return self._place.waited_s + self._whole.waited_s

    def of(
        self, gradients: Named, step: int, owners: Owners | None = None, sent: Sent | None = None
    ) -> dict[str, Part]:
        """See Means."""
        del step
        return self._mean(gradients, self._place, owners, sent)

    def settling(self, gradients: Named, owners: Owners | None = None) -> dict[str, Part]:
        """See Means."""
        mean = self._mean(gradients, self._whole, owners)
        for name in gradients:
            self.residuals.of_rank.pop(name, None)
            self.residuals.of_means.pop(name, None)
        return mean

    @torch.no_grad()
    def _mean(
        self, gradients: Named, place: _Place, owners: Owners | None, sent: Sent | None = None
    ) -> dict[str, Part]:
        rows = Rows({name: gradient.numel() for name, gradient in gradients.items()}, place.codecs.block)
        shards = None if owners is None else rows.shards(owners)
        own = (shards or place.allotment.shards(rows.elements)).of(place.rank)
        residuals = mean_residuals = None
        if self._feedback:
            residuals = rows.joined({name: part for name, part in self.residuals.of_rank.items() if name in gradients})
            mean_residuals = self._mean_residuals(rows, *own)
        values = rows.joined(gradients)
        if sent is not None:
            sent.meant, sent.error = self._norms(rows, values, residuals)
        offset, mean = place.mean(values, residuals, mean_residuals, shards)
        if residuals is not None and mean_residuals is not None:
            self.residuals.of_rank.update({name: rows.part(residuals, name) for name in gradients})
            self.residuals.of_means.update(rows.parts(mean_residuals, own[0]))
        return rows.parts(mean, offset)

    def _norms(self, rows: Rows, values: Tensor, residuals: Tensor | None) -> tuple[float, float]:
        """Of values and residuals, and of what codes leave out of them."""
        codec, meant = self._place.codecs.contributions, values if residuals is None else values + residuals
        codec.encode_with_feedback(meant, left := torch.zeros_like(meant), len(meant) // codec.block)
        return norm((meant,)), norm(rows.part(left, name) for name in rows.counts)  # but for what fills up blocks

    def _mean_residuals(self, rows: Rows, offset: int, length: int) -> Tensor:
        """Of the part that this rank owns: what is known of it."""
        found = torch.zeros(length, dtype=torch.float32)
        for name in rows.counts:
            begin_known, known = self.residuals.of_means.get(name, (0, found[:0]))
            first, count = rows.within(name, offset, length)
            begin, end = max(begin_known, first), min(begin_known + len(known), first + count)
            if begin < end:
                at = rows.offsets[name] - offset
                found[at + begin : at + end] = known[begin - begin_known : end - begin_known]
        return found

    def bytes_sent(self, shapes: Mapping[str, torch.Size], step: int, owners: Owners | None = None) -> int:
        """See Means."""
        rows = Rows({name: math.prod(shape) for name, shape in shapes.items()}, self._place.codecs.block)
        return self._place.bytes_sent(rows.elements, None if owners is None else rows.shards(owners))


class PowerMeans:
    """See Means: P = mean(M Q), made orthogonal, Q = mean(M' P), then P Q'; M: gradients and residuals.

    All ranks have whole means, whoever owns what.
    """

    def __init__(self, group: dist.ProcessGroup | None, method: PowerSGD) -> None:
        self._place, self._method = _Place(group, FLOAT32), method
        self.residuals = Residuals()
        self.factors: dict[str, Tensor] = {}  # Q, by parameter

    @property
    def waited_s(self) -> float:
        """See Means."""
        return self._place.waited_s

    @torch.no_grad()
    def settling(self, gradients: Named, owners: Owners | None = None) -> dict[str, Part]:
        """See Means."""
        del owners
        values = {name: gradient.float() for name, gradient in gradients.items()}
        for name, value in values.items():
            if name in self.residuals.of_rank:
                values[name] = value + self.residuals.of_rank.pop(name).view(value.shape)
        return _whole(self._means(values))

    @torch.no_grad()
    def of(
        self, gradients: Named, step: int, owners: Owners | None = None, sent: Sent | None = None
    ) -> dict[str, Part]:
        """See Means. All factors of a kind travel together, with what is sent whole."""
        del owners
        matrices = {}
        for name in gradients if step >= self._method.start else ():
            if is_factored(gradients[name].shape, self._method.rank):
                matrix = as_matrix(gradients[name].float())
                residuals = self.residuals.of_rank.get(name)
                matrices[name] = matrix + residuals.view_as(matrix) if residuals is not None else matrix
                if name not in self.factors:
                    self.factors[name] = first_factor(name, matrix.shape[1], self._method)
        whole = {name: gradient.float() for name, gradient in gradients.items() if name not in matrices}
        if sent is not None:
            sent.meant, sent.error = norm((*whole.values(), *matrices.values())), 0.0
        found = self._means({**whole, **{name: m @ self.factors[name] for name, m in matrices.items()}})
        if matrices:
            left = {name: orthogonal(found[name]) for name in matrices}
            right = self._means({name: m.t() @ left[name] for name, m in matrices.items()})
            for name, matrix in matrices.items():
                product = left[name] @ right[name].t()
                self.factors[name] = refreshed(right[name], name, self._method)
                if self._method.feedback:
                    self.residuals.of_rank[name] = (matrix - product).nan_to_num_(0.0, 0.0, 0.0).flatten()
                found[name] = product
            if sent is not None:
                sent.error = norm(matrix - found[name] for name, matrix in matrices.items())
        return _whole(found)

    def _means(self, values: Named) -> dict[str, Tensor]:
        """In float32, summed in rank order, divided once."""
        rows = Rows({name: value.numel() for name, value in values.items()}, block=1)
        _, mean = self._place.mean(rows.joined(values), None, None)
        return {name: rows.part(mean, name).view(value.shape) for name, value in values.items()}

    def bytes_sent(self, shapes: Mapping[str, torch.Size], step: int, owners: Owners | None = None) -> int:
        """See Means."""
        del owners
        first = second = 0
        for shape in shapes.values():
            if step >= self._method.start and is_factored(shape, self._method.rank):
                rows = shape[0]
                columns = math.prod(shape) // rows
                first, second = first + rows * self._method.rank, second + columns * self._method.rank
            else:
                first += math.prod(shape)
        return sum(self._place.bytes_sent(elements) for elements in (first, second) if elements)


def _whole(means: Named) -> dict[str, Part]:
    return {name: (0, mean.flatten()) for name, mean in means.items()}


def means_of(group: dist.ProcessGroup | None, method: Fixed) -> Means:
    """By the method that was asked for."""
    return PowerMeans(group, method) if isinstance(method, PowerSGD) else CodedMeans(group, method)


def norm(tensors: Iterable[Tensor]) -> float:
    """Of all values together."""
    return math.hypot(*(float(torch.linalg.vector_norm(tensor)) for tensor in tensors))


def as_matrix(gradient: Tensor) -> Tensor:
    """Rows are its first dimension."""
    return gradient.reshape(gradient.shape[0], -1)


def is_factored(shape: Sequence[int], rank: int) -> bool:
    """Whether a gradient is a matrix whose factors are smaller than itself."""
    if len(shape) < 2 or math.prod(shape) == 0:
        return False
    rows, columns = shape[0], math.prod(shape[1:])
    return (rows + columns) * rank < rows * columns


def first_factor(name: str, columns: int, method: PowerSGD) -> Tensor:
    """Random, the same on all ranks; by the parameter's name, so that buckets do not matter."""
    source = torch.Generator().manual_seed(method.seed << 32 ^ zlib.crc32(name.encode()))
    return torch.randn(columns, method.rank, generator=source, dtype=torch.float32)


def refreshed(factor: Tensor, name: str, method: PowerSGD) -> Tensor:
    """For the next step: columns that have no direction, of gradients that were 0 or not finite, are as at first."""
    lengths = torch.linalg.vector_norm(factor, dim=0)
    return torch.where(lengths.isfinite() & (lengths > 0), factor, first_factor(name, len(factor), method))


def orthogonal(factor: Tensor) -> Tensor:
    """Its columns made orthonormal one after the other (Gram-Schmidt); a column that depends on others becomes 0.

    Twice, as once loses digits. One that is not finite becomes NaN. Sums are torch's, equal on ranks of one kind.
    """
    columns: list[Tensor] = []
    for column in factor.unbind(1):
        length = column.norm()
        for _ in range(2):
            for known in columns:
                column = column - known * torch.dot(known, column)
        size = column.norm()
        depends = bool(length.isfinite()) and bool(size <= 1e-5 * length)
        columns.append(torch.zeros_like(column) if depends else column / size)
    return torch.stack(columns, 1)
