"""Which samples each micro-batch (leaf) of a step has, whatever the number of ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Sampler

from ringdp import _native
from ringdp.text.arguments import check_flag, check_whole_number

_C = _native.load()


class Leaves(Sampler[list[int]]):
    """A pure function (epoch, step, leaf) -> indices into a data set, and a batch sampler of this rank's leaves.

    A step takes micro_batches * micro_batch samples of the epoch's permutation, which depends on (seed, epoch), in the
    order of leaves. remainder: samples of an epoch that are no whole step are dropped ("drop"), or begin the next
    epoch's first step ("carry"); `left(epoch)` says how many.

    As `batch_sampler` of a DataLoader it yields the batches of `mine()`, step by step, of the epoch that set_epoch()
    has set. A DataLoader draws a batch before its leaf begins, so random augmentation belongs inside `ringdp.leaf`; in
    the data set it would depend on the number of ranks. in_rounds: leaves are dealt out in turn (rank r runs r, r + N,
    ...) and not as blocks: for shard_leaves=True, which then holds few sums. rank, ranks: default to those of the
    default process group, or 0 and 1 without one. ValueError names an argument.
    """

    def __init__(
        self,
        dataset_len: int,
        *,
        micro_batch: int,
        micro_batches: int,
        seed: int = 0,
        remainder: Literal["drop", "carry"] = "drop",
        in_rounds: bool = False,
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        """See the class."""
        for name, value in (
            ("dataset_len", dataset_len),
            ("micro_batch", micro_batch),
            ("micro_batches", micro_batches),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(
                    f"Leaves: {name}={value!r}, must be a whole number of at least 1; a data set without a length "
                    "cannot be cut: compute the samples of a leaf from its step and number"
                )
        check_whole_number("Leaves: seed", seed)
        check_flag("Leaves: in_rounds", in_rounds)
        for name, value, least in (("rank", rank, 0), ("ranks", ranks, 1)):
            if value is not None:
                check_whole_number(f"Leaves: {name}", value, least)
        if remainder not in ("drop", "carry"):
            raise ValueError(f"Leaves: remainder={remainder!r}, must be 'drop' or 'carry'")
        self.dataset_len, self.micro_batch, self.micro_batches = dataset_len, micro_batch, micro_batches
        self.seed, self.remainder, self.epoch = seed, remainder, 0
        self._in_rounds, self._rank, self._ranks = in_rounds, rank, ranks
        if remainder == "drop" and dataset_len < self.step_samples:
            raise ValueError(
                f"Leaves: dataset_len={dataset_len} is less than one step of {micro_batches} x {micro_batch} samples: "
                "use smaller micro-batches, or remainder='carry'"
            )

    @property
    def step_samples(self) -> int:
        """Of all ranks together."""
        return self.micro_batches * self.micro_batch

    def first_step(self, epoch: int) -> int:
        """The number of steps in the epochs before: what to add to a step for ringdp.leaf, which must not repeat."""
        if self.remainder == "drop":
            return epoch * (self.dataset_len // self.step_samples)
        return epoch * self.dataset_len // self.step_samples

    def steps(self, epoch: int) -> int:
        """In this epoch."""
        return self.first_step(epoch + 1) - self.first_step(epoch)

    def left(self, epoch: int) -> int:
        """Samples of this epoch that are dropped, or begin the next one's first step."""
        if self.remainder == "drop":
            return self.dataset_len % self.step_samples
        return (epoch + 1) * self.dataset_len % self.step_samples

    def indices(self, epoch: int, step: int, leaf: int) -> list[int]:
        """Of one micro-batch; the same on every rank. IndexError: no such step of the epoch, or no such leaf."""
        if not (0 <= step < self.steps(epoch) and 0 <= leaf < self.micro_batches):
            raise IndexError(
                f"Leaves: step {step}, leaf {leaf}: epoch {epoch} has {self.steps(epoch)} steps of "
                f"{self.micro_batches} leaves"
            )
        begin = self._begin(epoch, step) + leaf * self.micro_batch
        return self._samples(begin, begin + self.micro_batch)

    def samples(self, epoch: int) -> list[int]:
        """Of all micro-batches of an epoch, in the order of steps and leaves: each once, but for what is carried."""
        return self._samples(self._begin(epoch, 0), self._begin(epoch, self.steps(epoch)))

    def mine(self, rank: int | None = None, ranks: int | None = None) -> list[int]:
        """The leaves that a rank (default: this one) runs in every step, so that few sums are sent. May be empty."""
        here = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        rank = next(r for r in (rank, self._rank, here[0]) if r is not None)
        ranks = next(n for n in (ranks, self._ranks, here[1]) if n is not None)
        if not 0 <= rank < ranks:
            raise ValueError(f"Leaves: rank={rank}, ranks={ranks}: the ranks are numbered from 0 to ranks - 1")
        if self._in_rounds:
            return list(range(rank, self.micro_batches, ranks))
        return _C.allot_leaves(_C.even_shares(self.micro_batches, ranks))[rank]

    def set_epoch(self, epoch: int) -> None:
        """Of the iterators that begin afterwards."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Batches of this rank's leaves in the current epoch."""
        epoch, mine = self.epoch, self.mine()
        for step in range(self.steps(epoch)):
            for leaf in mine:
                yield self.indices(epoch, step, leaf)

    def __len__(self) -> int:
        """How many those are."""
        return self.steps(self.epoch) * len(self.mine())

    def _begin(self, epoch: int, step: int) -> int:
        """A step's first sample, in the epochs' permutations."""
        if self.remainder == "drop":
            return epoch * self.dataset_len + step * self.step_samples
        return (self.first_step(epoch) + step) * self.step_samples

    def _samples(self, begin: int, end: int) -> list[int]:
        """Of the epochs' permutations, one after the other."""
        found: list[int] = []
        while begin < end:
            epoch, place = divmod(begin, self.dataset_len)
            own = _permutation(self.dataset_len, self.seed, epoch)[place : place + end - begin].tolist()
            found += own
            begin += len(own)
        return found


@lru_cache(maxsize=2)
def _permutation(length: int, seed: int, epoch: int) -> Tensor:
    """int64, 8 bytes per sample; two, as a step may have samples of two epochs."""
    digest = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    return torch.randperm(length, generator=generator)
