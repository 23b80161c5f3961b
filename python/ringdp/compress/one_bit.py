"""`ringdp.OneBitAdam`: AdamW whose momentum travels as codes, in place of gradients (1-bit Adam, arXiv 2102.02888).

At first gradients travel whole, and steps are those of torch.optim.AdamW. Once second moments hardly change they are
frozen: the optimizer is linear in the gradients from then on, so error feedback works as it does under SGD. Then each
rank's contribution to parameter p is beta1 u + (1 - beta1) g / d, where u is p's momentum by d = sqrt(v) + eps, the
frozen denominators, and the mean over ranks is the next u. The paper sends the momentum itself; divided by d its
elements are of one size, which is what one scale for a block of signs needs. An element that had hardly had a gradient
until then would move in leaps: d is at least 1 % of its root mean square over the parameter, or over all parameters
where that is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from ringdp import _native
from ringdp.text.units import counted

_C = _native.load()
_STILL = 0.96  # of second moments: less than so much of them is older than `span` steps, says the paper
_LEAST = 0.01
_SAMPLES = 10  # of the size of second moments, within the time that is looked back
_FREEZE, _FROZEN, _SIZES = "freeze", "frozen_at", "sizes"  # in the param group, so that checkpoints have them
MEAN, SQUARE, DENOMINATOR = "exp_avg", "exp_avg_sq", "denominator"  # u takes the place of the mean


class OneBitAdam(AdamW):
    """Of all parameters of a `ringdp.DistributedDataParallel` with compress="sign" (or "int8", "fp8", a TopK).

    freeze: the number of steps before second moments are frozen; None: as soon as their norm was 0.96 of what it is
    now 1 / (1 - beta2) steps ago. Also of a plain module, for `ringdp.testing.one_process(compress=...)`.

    Once frozen, .grad holds the next momentum after a backward pass, so gradients are neither clipped nor scaled then
    (GradScaler). TypeError, ValueError, NotImplementedError name what is refused.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        freeze: int | None = None,
    ) -> None:
        if freeze is not None and (not isinstance(freeze, int) or isinstance(freeze, bool) or freeze < 1):
            raise ValueError(f"OneBitAdam: freeze={freeze!r}, must be None or a number of steps from 1 on")
        if not isinstance(model, nn.Module):
            raise TypeError(f"OneBitAdam: {type(model).__name__}: its first argument is the model, not its parameters")
        compression = getattr(model, "_compression", None)
        if isinstance(model, DistributedDataParallel) and compression is None:
            raise ValueError(
                "OneBitAdam: its model does not compress: use ringdp.DistributedDataParallel(model, compress='sign')"
            )
        super().__init__(
            [p for p in model.parameters() if p.requires_grad],
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            foreach=False,
        )
        self.defaults[_FREEZE] = freeze
        self.__setstate__({})
        if compression is not None:
            compression.follow(self)

    @property
    def is_frozen(self) -> bool:
        """Whether momenta travel, and second moments stay as they are."""
        return self.param_groups[0][_FROZEN] > 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Also of an AdamW."""
        super().__setstate__(state)
        for name, value in ((_FREEZE, self.defaults[_FREEZE]), (_FROZEN, 0), (_SIZES, [])):
            self.param_groups[0].setdefault(name, value)
        self._arrived: set[Tensor] = set()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, which would give denominators the parameters' dtype."""
        super().load_state_dict(state_dict)
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            if DENOMINATOR in (known := state_dict["state"].get(number, {})):
                self.state[parameter][DENOMINATOR] = known[DENOMINATOR].clone()

    def told(self) -> dict[str, Any]:
        """What must be the same on all ranks."""
        group = self.param_groups[0]
        return {name: group[name] for name in (_FREEZE, "lr", "betas", "eps", "weight_decay")}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused but for the first one: NotImplementedError."""
        if self.param_groups:
            raise NotImplementedError("OneBitAdam.add_param_group: it has the parameters that its model had")
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; also where the step of these gradients was left out, as they were not finite."""
        super().zero_grad(set_to_none)
        self._arrived.clear()

    def begin_pass(self) -> None:
        """In front of a forward pass: .grad may also have been dropped by the module's zero_grad()."""
        self._arrived = {parameter for parameter in self._arrived if parameter.grad is not None}

    def arrive(self, parameters: Sequence[Tensor]) -> None:
        """Their next momenta come into .grad. RuntimeError where they have since the latest step or zero_grad()."""
        if not self._arrived.isdisjoint(parameters):
            raise RuntimeError(
                "OneBitAdam: two synchronised backward passes before one step(), and .grad is a momentum after the "
                "first: use no_sync() for all passes of a step but the last, or zero_grad() to leave out a step"
            )
        self._arrived.update(parameters)

    def contribution(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Once frozen: what a rank with this gradient sends, float32."""
        beta1 = self.param_groups[0]["betas"][0]
        state = self.state[parameter]
        return state[MEAN].float() * beta1 + gradient.float() / state[DENOMINATOR] * (1 - beta1)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """As AdamW's, without a closure."""
        if closure is not None:
            raise NotImplementedError("OneBitAdam.step: a closure; gradients travel before the step")
        group = self.param_groups[0]
        if not self.is_frozen:
            super().step()
            self._look(group)
            return
        stepped = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in stepped:
            if parameter not in self._arrived:
                raise RuntimeError(
                    f"OneBitAdam: the gradient of a parameter of shape {list(parameter.shape)} is no momentum from all "
                    "ranks: make the optimizer of the wrapper, as OneBitAdam(ddp), and call step() after a "
                    "synchronised backward pass"
                )
        self._arrived.clear()
        for parameter in stepped:
            state = self.state[parameter]
            state[MEAN].copy_(parameter.grad)
            state["step"] += 1
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(state[MEAN], alpha=-group["lr"])

    def _look(self, group: dict[str, Any]) -> None:
        """Freezes when it is time to."""
        steps = max((int(self.state[p]["step"]) for p in group["params"] if p in self.state), default=0)
        if group[_FREEZE] is not None:
            if steps >= group[_FREEZE]:
                self._freeze_now(group, steps)
            return
        span = round(1 / (1 - group["betas"][1]))
        every = max(1, span // _SAMPLES)
        if steps % every:
            return
        corrected = 1 - group["betas"][1] ** steps
        size = _norm([self.state[p][SQUARE] for p in group["params"] if p in self.state]) / corrected
        group[_SIZES] = [*group[_SIZES], size][-(span // every + 1) :]
        known = len(group[_SIZES]) > span // every and size > 0
        if known and _STILL <= group[_SIZES][0] / size <= 1 / _STILL:
            self._freeze_now(group, steps)

    def _freeze_now(self, group: dict[str, Any], steps: int) -> None:
        beta1, beta2 = group["betas"]
        if missing := [list(p.shape) for p in group["params"] if p not in self.state]:
            raise RuntimeError(
                f"OneBitAdam: a parameter of shape {missing[0]} has had no gradient in {counted(steps, 'step')}, so it "
                "has no second moment to freeze: call requires_grad_(False) before the model is wrapped if it is not "
                "used, or freeze later"
            )
        numbers = [int(self.state[p]["step"]) for p in group["params"]]
        roots = [
            (self.state[p][SQUARE].float() / (1 - beta2**number)).sqrt_()
            for p, number in zip(group["params"], numbers, strict=True)
        ]
        typical = _norm(roots) / max(1, sum(root.numel() for root in roots)) ** 0.5
        if typical == 0:
            raise RuntimeError(f"OneBitAdam: all gradients were 0 in {counted(steps, 'step')}: freeze later")
        for parameter, number, root in zip(group["params"], numbers, roots, strict=True):
            state = self.state[parameter]
            own = _norm([root]) / max(1, root.numel()) ** 0.5 or typical
            del state[SQUARE]
            state[DENOMINATOR] = root.clamp_(min=_LEAST * own).add_(group["eps"])
            state[MEAN].copy_(state[MEAN].float() / (1 - beta1**number) / root)
        group[_FROZEN] = steps


def _norm(tensors: Sequence[Tensor]) -> float:
    """With the same bits for any number of threads."""
    return math.fsum(s for t in tensors for s in _C.block_squares(t.float().flatten()).tolist()) ** 0.5
