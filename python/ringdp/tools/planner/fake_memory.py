"""Bytes that a training pass would hold, counted by running it on torch's fake tensors: shapes without memory.

The model may be anywhere, also on the meta device (then it is taken to be for the CPU); nothing of its size is
allocated. Counted is what torch's operators return, storage by storage, while it is alive; scratch memory inside one
operator is not seen.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from ringdp.innermost import innermost

Loss = Callable[[Callable[..., Any], Any], Tensor]


class CannotCount(RuntimeError):
    """The model cannot run without values; the message says where, and the way out."""


@dataclass(frozen=True)
class PassMemory:
    """Bytes. saved: what forward keeps for backward. peak: the most at any moment, without parameters and gradients."""

    parameters: int
    gradients: int
    saved: int
    peak: int


class _Alive(TorchDispatchMode):
    """Bytes of storages that are alive and not known from before."""

    def __init__(self, known: Iterator[Tensor]) -> None:
        super().__init__()
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet(t.untyped_storage() for t in known)
        self.now = self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._seen:
            return
        self._seen.add(storage)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, size)

    def _drop(self, size: int) -> None:
        self.now -= size


def default_loss(model: Callable[..., Any], batch: Any) -> Tensor:
    """Calls the model with the batch (a tensor, a tuple, or a mapping of arguments) and adds up what comes out."""
    if isinstance(batch, Mapping):
        out = model(**batch)
    else:
        out = model(*batch) if isinstance(batch, tuple | list) else model(batch)
    floating = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not floating:
        raise CannotCount("the model returns no floating-point tensor: give loss=function(model, batch)")
    return torch.stack([leaf.sum() for leaf in floating]).sum()


def _fake(tensor: Tensor) -> Tensor:
    """A tensor of the same shape; needs a FakeTensorMode."""
    device = torch.device("cpu") if tensor.is_meta else tensor.device
    fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    return fake.requires_grad_(tensor.requires_grad)


def pass_memory(model: nn.Module, batch: Any, loss: Loss = default_loss) -> PassMemory:
    """Memory of one forward and backward pass. CannotCount when the model's control flow needs values."""
    with _explained(), FakeTensorMode(allow_non_fake_inputs=True):
        return _counted(model, tree_map_only(Tensor, _fake, batch), loss)


class _Pass(nn.Module):
    """A whole pass as one call, so that layers that are computed again in backward find the same tensors."""

    def __init__(self, model: nn.Module, run: Callable[[nn.Module], PassMemory]) -> None:
        super().__init__()
        self.model, self._run = model, run

    def forward(self) -> PassMemory:
        """What `run` counts."""
        return self._run(self.model)


def _counted(model: nn.Module, shapes: Any, loss: Loss) -> PassMemory:
    state = _fake_state(model)
    inputs = [leaf for leaf in tree_flatten(shapes)[0] if isinstance(leaf, Tensor)]
    trained = {id(t): t for t in state.values() if t.requires_grad}.values()

    def run(whole: nn.Module) -> PassMemory:
        with _Alive(iter([*state.values(), *inputs])) as alive:
            scalar = loss(whole, shapes)
            saved, forward = alive.now, alive.peak
            alive.peak = saved
            scalar.backward()
        made = sum(tensor.grad.untyped_storage().nbytes() for tensor in trained if tensor.grad is not None)
        parameters = sum(p.nbytes for p in model.parameters())
        return PassMemory(parameters, sum(t.nbytes for t in trained), saved, max(forward, alive.peak - made))

    return functional_call(_Pass(model, run), {f"model.{name}": tensor for name, tensor in state.items()})


def _fake_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by every name, tied ones being one tensor."""
    made: dict[int, Tensor] = {}
    state = {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        if id(tensor) not in made:
            made[id(tensor)] = _fake(tensor)
        state[name] = made[id(tensor)]
    return state


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, CannotCount):
            raise
        said = str(error).strip().splitlines()[0]
        raise CannotCount(f"the model cannot run without values ({said}): give activation_bytes= instead") from error


Maker = Callable[[Iterable[nn.Parameter]], Optimizer]


def maker_of(optimizer: Optimizer | Maker) -> Maker:
    """What makes such an optimizer: a class or function as it is, of an instance its class with the same settings."""
    if not isinstance(optimizer, Optimizer):
        return optimizer
    optimizer = innermost(optimizer)
    kind = type(optimizer)
    accepted = inspect.signature(kind.__init__).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    return lambda parameters: kind(parameters, **settings)


def state_bytes(optimizer: Optimizer | Maker, parameters: Iterable[Tensor]) -> int:
    """Bytes of optimizer state of all trained parameters, without masters. CannotCount when its step needs values."""
    shapes = [nn.Parameter(torch.empty_like(p, device="meta")) for p in parameters if p.requires_grad]
    if not shapes:
        return 0
    for shape in shapes:
        shape.grad = torch.empty_like(shape)
    try:
        made = maker_of(optimizer)(shapes)
        made.step()
    except Exception as error:  # a class of the user's may fail in any way without values
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CannotCount(f"{name} cannot step without values ({said}): give optimizer_bytes= instead") from error
    return held_bytes(made)


def held_bytes(optimizer: Optimizer) -> int:
    """Bytes of the tensors that are in its state now."""
    kept: list[Any] = [value for entry in optimizer.state.values() for value in entry.values()]
    return sum(value.nbytes for value in kept if torch.is_tensor(value))
