"""One bucket of parameters that travels while the program goes on: until it has come nobody can read it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ringdp import _native
from ringdp.zero.flat import FlatParameters

_C = _native.load()


class Away:
    """Between `leave()` and `arrive()` parameters have all but their memory, and so have views of them that were kept.

    Whoever reads one then gets a RuntimeError: of a parameter it names it, of an older view the bucket's first one.
    """

    def __init__(self, flat: FlatParameters, bucket: int, names: Mapping[torch.Tensor, str]) -> None:
        self._flat, self._bucket = flat, bucket
        self._views = flat.views(bucket)
        self.parameters = list(self._views)
        texts = [_too_early(f"parameter {names[p]} is read") for p in self.parameters]
        self._stand_ins = [_C.without_memory(v, t) for v, t in zip(self._views.values(), texts, strict=True)]
        first = names[self.parameters[0]]
        self._absent = _too_early(f"a view that was kept of {first}, or of a parameter in its bucket, is used")
        self._memory: torch.Tensor | None = None
        self._work: object = None

    def leave(self) -> None:
        """Starts to give everybody what this rank has stepped."""
        self._flat.round_to_parameters(self._bucket)
        whole = self._flat.whole(self._bucket)
        self._memory = _C.take_memory(whole, self._absent)
        try:
            self._work = self._flat.gather_in(self._memory[: whole.nbytes].view(whole.dtype))
        except BaseException:
            self._come_back()
            raise
        _C.set_values(self.parameters, self._stand_ins)

    def arrive(self) -> None:
        """Waits until it is here. Where a rank is lost this raises, now and ever after: nobody reads half of it."""
        self._flat.check_unchanged(self._bucket)  # strides of a stand-in would be lost
        self._work.wait()
        self._come_back()
        # What was assigned to .data meanwhile is newer.
        here = [(p, self._views[p]) for p, s in zip(self.parameters, self._stand_ins, strict=True) if _shares(p, s)]
        _C.set_values([p for p, _ in here], [view for _, view in here])

    def _come_back(self) -> None:
        _C.give_memory(self._flat.whole(self._bucket), self._memory)
        self._memory = self._work = None


def _shares(parameter: torch.Tensor, stand_in: torch.Tensor) -> bool:
    return parameter.untyped_storage()._cdata == stand_in.untyped_storage()._cdata


def _too_early(what: str) -> str:
    return (
        f'{what} before it has come from the ranks that stepped it (ZeroOptimizer with gather="forward"), outside the '
        "forward of the module it belongs to: call optimizer.wait() first"
    )
