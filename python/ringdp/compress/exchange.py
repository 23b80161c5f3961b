"""The mean over all workers of what each contributes to a fragment, with the same bits at every number of ranks.

Workers are those of DiLoCo, or the ranks themselves. Each rank owns one part of the fragment. In the first half of the
way the owners receive what the workers contribute, and sum it in float32: along the tree over workers' numbers that
`micro_batches=M` uses, or in the order of these numbers. In the second half all ranks receive the means. In float32 and
along the tree a rank sends the sums of subtrees all of whose workers it plays; codes travel as they are, by worker, as
sums of codes would depend on who plays whom. Means are encoded, too, and their owner keeps the residual.
"""

from __future__ import annotations

import functools
import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp import _native
from ringdp.compress.codec import BLOCK, Codecs

_C = _native.load()
Node = tuple[int, int]  # of the tree: the workers begin..end-1


@dataclass(frozen=True)
class Shards:
    """Which elements of a fragment each rank owns: those of the blocks from cuts[rank] to cuts[rank + 1]."""

    elements: int
    block: int
    cuts: tuple[int, ...]

    def blocks(self, rank: int) -> int:
        """How many a rank owns, the filled up ones included."""
        return self.cuts[rank + 1] - self.cuts[rank]

    def of(self, rank: int) -> tuple[int, int]:
        """(offset, length) of the elements that a rank owns."""
        begin, end = (min(cut * self.block, self.elements) for cut in self.cuts[rank : rank + 2])
        return begin, end - begin

    def bytes_to_owners(self, rank: int, block_bytes: int) -> int:
        """That a rank sends if every other one gets what it owns, once."""
        return (self.cuts[-1] - self.blocks(rank)) * block_bytes


@dataclass(frozen=True)
class Allotment:
    """Which of `workers` each of `ranks` plays: consecutive ones in the order of ranks, equally many, or one more."""

    workers: int
    ranks: int
    block: int = BLOCK  # of the codecs

    def of(self, rank: int) -> Sequence[int]:
        """The workers of a rank."""
        return range(rank * self.workers // self.ranks, (rank + 1) * self.workers // self.ranks)

    def nodes(self, rank: int, codecs: Codecs) -> list[Node]:
        """What this rank sends: the sums of these subtrees."""
        if codecs.contributions.is_exact:
            return [tuple(node) for node in _C.leaf_roots(self.workers, list(self.of(rank)))]
        return [(worker, worker + 1) for worker in self.of(rank)]

    def shards(self, elements: int) -> Shards:
        """Of a fragment: equally many blocks for each rank."""
        size = math.ceil(math.ceil(elements / self.block) / self.ranks)
        return Shards(elements, self.block, tuple(size * rank for rank in range(self.ranks + 1)))

    def shard(self, rank: int, elements: int) -> tuple[int, int]:
        """(offset, length) of the elements of a fragment that this rank owns."""
        return self.shards(elements).of(rank)

    def bytes_by_half(self, rank: int, elements: int, codecs: Codecs) -> tuple[int, int]:
        """By this rank to others in each half of the way, for one exchange of a fragment of so many elements."""
        shards, contributions = self.shards(elements), len(self.nodes(rank, codecs)) * codecs.contributions.block_bytes
        means = (self.ranks - 1) * shards.blocks(rank) * codecs.means.block_bytes
        return shards.bytes_to_owners(rank, contributions), means

    def bytes_sent(self, rank: int, elements: int, codecs: Codecs) -> int:
        """Of both halves."""
        return sum(self.bytes_by_half(rank, elements, codecs))


@dataclass(frozen=True)
class Listed(Allotment):
    """Any workers on any rank: by_rank, each once. Sums follow the numbers of workers, so no bit depends on it."""

    by_rank: tuple[tuple[int, ...], ...] = field(kw_only=True)

    def of(self, rank: int) -> Sequence[int]:
        """The workers of a rank; there may be none."""
        return self.by_rank[rank]


def tree_sum(begin: int, end: int, node: Callable[[int, int], Tensor | None]) -> Tensor:
    """The sum over workers begin..end-1 along the tree. node(begin, end): such a sum, as soon as it is known."""
    known = node(begin, end)
    if known is not None:
        return known
    middle = begin + (end - begin + 1) // 2
    return tree_sum(begin, middle, node) + tree_sum(middle, end, node)


def sum_in_order(begin: int, end: int, node: Callable[[int, int], Tensor | None]) -> Tensor:
    """((w0 + w1) + w2) + ..., of workers begin..end-1. node(w, w + 1): what worker w contributes."""
    return functools.reduce(operator.add, (node(worker, worker + 1) for worker in range(begin, end)))


class Exchange:
    """One exchange of one fragment, on its way. Collective: the constructor and send_means(); mean() waits.

    A rank that needs only what it owns calls own_means() instead; then all do.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        allotment: Allotment,
        codecs: Codecs,
        elements: int,
        contribution: Callable[[int], Tensor],
        *,
        residuals: Mapping[int, Tensor],
        mean_residuals: Tensor | None,
        device: torch.device | None = None,
        sum_of: Callable[[int, int, Callable[[int, int], Tensor | None]], Tensor] = tree_sum,
        shards: Shards | None = None,
    ) -> None:
        """contribution(worker): float32 [elements], of each worker of this rank.

        residuals, mean_residuals: what earlier codes have left out, by worker and of the shard of means that this rank
        owns; they change in place. Nothing ({}, None) for float32. device: needed where a rank may have no worker; of
        the contributions. sum_of: sum_in_order only where each rank is one worker. shards: None: equal ones. Others
        are for own_means(), as send_means() sends equally much of each rank.
        """
        self._group, self._allotment, self._codecs = group, allotment, codecs
        self._shards = shards or allotment.shards(elements)
        self._rank = group.rank() if group is not None else 0
        self._mean_residuals, self._sum_of = mean_residuals, sum_of
        self.waited_s = 0.0  # for other ranks and links
        cuts = self._shards.cuts

        def of_one(begin: int, end: int) -> Tensor | None:
            return contribution(begin) if end == begin + 1 else None

        codec, rows = codecs.contributions, []
        for begin, end in allotment.nodes(self._rank, codecs):
            total = tree_sum(begin, end, of_one)
            rows.append(codec.encode_with_feedback(total, residuals.get(begin), cuts[-1]))
        nothing = torch.empty(0, codec.block_bytes, dtype=torch.uint8, device=device)
        parts = (row[begin:end] for begin, end in pairwise(cuts) for row in rows)
        sent = torch.cat([nothing, *parts])  # by owner, then row
        self._sent: Tensor | None = sent  # as long as it is on its way
        self._received: Tensor | None = sent
        self._work = None
        if group is not None:
            ranks = range(allotment.ranks)
            shard = self._shards.blocks(self._rank) * codec.block_bytes
            counts = [shard * len(allotment.nodes(rank, codecs)) for rank in ranks]
            given = [self._shards.blocks(rank) * codec.block_bytes * len(rows) for rank in ranks]
            self._received = sent.new_empty(sum(counts))
            self._work = dist.all_to_all_single(self._received, sent.view(-1), counts, given, group, async_op=True)
        self._means: Tensor | None = None  # encoded, of all owners
        self._own: Tensor | None = None  # encoded, those of this rank

    def own_means(self) -> tuple[int, Tensor]:
        """The first element that this rank owns, and the means of these elements as all ranks will have them. Waits."""
        if self._own is None:
            self._own = self._encoded_means()
        offset, length = self._shards.of(self._rank)
        return offset, self._codecs.means.decode(self._own).flatten()[:length]

    def send_means(self) -> None:
        """Waits for the first half and begins the second one, unless that was done."""
        if self._means is not None:
            return
        self.own_means()
        self._means = self._own
        if self._group is not None:
            ranks = self._allotment.ranks
            self._means = self._own.new_empty(ranks * len(self._own), self._codecs.means.block_bytes)
            self._work = dist.all_gather(list(self._means.chunk(ranks)), self._own, self._group, async_op=True)

    def mean(self) -> Tensor:
        """float32 [elements]; the same bits on all ranks."""
        self.send_means()
        self._wait()
        return self._codecs.means.decode(self._means).flatten()[: self._shards.elements]

    def _encoded_means(self) -> Tensor:
        """Those of this rank's shard."""
        self._wait()
        allotment, codec = self._allotment, self._codecs.contributions
        nodes = [node for rank in range(allotment.ranks) for node in allotment.nodes(rank, self._codecs)]
        blocks = self._shards.blocks(self._rank)
        rows = dict(zip(nodes, self._received.view(len(nodes), blocks, codec.block_bytes), strict=True))

        def received(begin: int, end: int) -> Tensor | None:
            return codec.decode(rows[begin, end]) if (begin, end) in rows else None

        _, length = self._shards.of(self._rank)
        mean = (self._sum_of(0, allotment.workers, received) / allotment.workers).flatten()[:length]
        mean.masked_fill_(mean.isnan(), math.nan)  # its sign and payload depend on the machine
        self._received = None
        return self._codecs.means.encode_with_feedback(mean, self._mean_residuals, blocks)

    def _wait(self) -> None:
        if self._work is not None:
            begin = time.perf_counter()
            self._work.wait()
            self.waited_s += time.perf_counter() - begin
        self._work = self._sent = None


class Arrived:
    """An exchange that a checkpoint has brought: its mean, float32 [elements], of which a rank owns `shard`."""

    def __init__(self, mean: Tensor, shard: tuple[int, int]) -> None:
        self._mean, self._shard = mean, shard

    def own_means(self) -> tuple[int, Tensor]:
        """As Exchange's."""
        offset, length = self._shard
        return offset, self._mean[offset : offset + length]

    def send_means(self) -> None:
        """Nothing is left to do."""

    def mean(self) -> Tensor:
        """As Exchange's."""
        return self._mean
