"""Residuals of a wrapper with compress=..., in checkpoints: by rank, as another number of ranks would have others.

compression: residuals of rank 3   of that rank's gradients, by parameter
compression: residuals of means    flat, of each rank the part that it owns
compression: factor           of PowerSGD
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ringdp.checkpoint.holder import Holder
from ringdp.checkpoint.piece import CheckpointError, Piece, Spec, Stretch, whole

if TYPE_CHECKING:
    from ringdp.compress.hook import Compression

PREFIX = "compression: "
_FACTOR, _OF_MEANS = PREFIX + "factor", PREFIX + "residuals of means"
_SETTINGS = "compression"


class CompressionToo:
    """See Holder: another one's state, and that of a compression; None: what a checkpoint has of one is left out."""

    def __init__(self, holder: Holder, compression: Compression | None) -> None:
        self._holder, self._compression = holder, compression

    def pieces(self) -> Iterator[Piece]:
        """Of both."""
        yield from self._holder.pieces()
        if (own := self._compression) is None:
            return
        counts = {name: parameter.numel() for parameter, name in own.names.items()}
        for name, residuals in own.means.residuals.of_rank.items():
            yield whole(self._of_rank(own.rank), name, residuals)
        for name, (offset, residuals) in own.means.residuals.of_means.items():
            if len(residuals):
                yield Piece(_OF_MEANS, name, (counts[name],), offset, residuals)
        for name, factor in own.means.factors.items():
            yield whole(_FACTOR, name, factor)

    def settings(self) -> Mapping[str, Any]:
        """Of both."""
        own = self._compression
        if own is None:
            return self._holder.settings()
        facts = {"method": own.name, "ranks": own.ranks, "steps": own.steps, "decisions": own.decisions}
        return {**self._holder.settings(), _SETTINGS: facts}

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterator[Stretch]:
        """CheckpointError where the checkpoint is of another method or number of ranks."""
        yield from self._holder.wants([spec for spec in saved if not spec.kind.startswith(PREFIX)], settings)
        own, facts = self._compression, settings.get(_SETTINGS)
        if own is None or facts is None:
            return
        for name, value in (("method", own.name), ("ranks", own.ranks)):
            if facts[name] != value:
                raise CheckpointError(
                    f"the checkpoint is of compress={facts['method']} on {facts['ranks']} ranks, whose {name} is "
                    f"{facts[name]}, and this run has {value}: load it into a model without a wrapper, and wrap that"
                )
        known = set(own.names.values())
        for spec in saved:
            if spec.kind in (self._of_rank(own.rank), _OF_MEANS, _FACTOR):
                if spec.name not in known:
                    raise CheckpointError(f"this model has no place for {spec} of the checkpoint")
                yield Stretch(spec, 0, spec.elements)

    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        """Of both; without a state of a compression residuals are 0."""
        self._holder.adopt([piece for piece in pieces if not piece.kind.startswith(PREFIX)], settings)
        if (own := self._compression) is None:
            return
        found: dict[str, dict[str, Tensor]] = {}
        for piece in pieces:
            if piece.kind.startswith(PREFIX):
                found.setdefault(piece.kind, {})[piece.name] = piece.tensor.view(piece.shape)
        own.drop_residuals()
        residuals = own.means.residuals
        residuals.of_rank = found.get(self._of_rank(own.rank), {})
        residuals.of_means = {name: (0, flat) for name, flat in found.get(_OF_MEANS, {}).items()}
        own.means.factors = found.get(_FACTOR, {})
        facts = settings.get(_SETTINGS, {"steps": 0, "decisions": []})
        own.restore(facts["steps"], facts["decisions"])

    @staticmethod
    def _of_rank(rank: int) -> str:
        return f"{PREFIX}residuals of rank {rank}"
