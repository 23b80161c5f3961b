"""Which optimizers can run on parts of parameters, and which tensors of their state are per element."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

ELEMENT_WISE = frozenset(
    ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
)
_OTHERS = {
    "Adafactor": "it keeps sums over rows and columns of a parameter",
    "LBFGS": "its direction depends on all gradients together",
    "Muon": "it orthogonalises whole matrices",
    "SparseAdam": "its gradients are sparse, which have no shards",
}


def check_class(optimizer_class: type[Optimizer]) -> None:
    """ValueError names the class and the reason when it cannot run on shards.

    A class outside of torch.optim declares that it is element-wise by a class attribute `element_wise = True`.
    """
    name = optimizer_class.__name__
    of_torch = optimizer_class.__module__.startswith("torch.optim")
    if (of_torch and name in ELEMENT_WISE) or getattr(optimizer_class, "element_wise", False):
        return
    reason = _OTHERS.get(name) if of_torch else None
    if reason is None:
        reason = "it is not known to treat every element by itself; if it does, give the class element_wise = True"
    raise ValueError(
        f"ZeroOptimizer: {name} cannot run on shards: {reason}. "
        f"Element-wise are {', '.join(sorted(ELEMENT_WISE))}; with others use zero_stage=0"
    )


_OF_PARAMETERS = ("step", "eta", "mu", "mu_product")  # one number per parameter, whatever its shape


def is_per_element(key: str, shape: Sequence[int], of: Sequence[int]) -> bool:
    """Whether state tensor `key` of a parameter (or piece) of shape `of` has one value per element."""
    return key not in _OF_PARAMETERS and tuple(shape) == tuple(of)


def is_number(key: str, shape: Sequence[int]) -> bool:
    """Whether state tensor `key` of a parameter is one number for all of its elements."""
    return key in _OF_PARAMETERS or not shape
