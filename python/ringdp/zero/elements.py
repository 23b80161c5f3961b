"""Which tensors of an optimizer's state have an element for each of their parameter's; the others are cut nowhere."""

from __future__ import annotations

from collections.abc import Sequence

_OF_PARAMETERS = ("step", "eta", "mu", "mu_product")  # one number per parameter, whatever its shape


def is_per_element(key: str, shape: Sequence[int], of: Sequence[int]) -> bool:
    """Of the tensor `key`, of this shape, in the state of a parameter, or of a piece of one, of shape `of`."""
    return key not in _OF_PARAMETERS and tuple(shape) == tuple(of)


def is_number(key: str, shape: Sequence[int]) -> bool:
    """Of the tensor `key`, of this shape, in the state of a parameter: it is one number for all of that."""
    return key in _OF_PARAMETERS or not shape
