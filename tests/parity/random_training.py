"""A random training, twice: on the ranks, leg by leg, and in one process that plays them; what is left, by name."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from random import Random
from typing import Any

import torch
from random_cases import Case, Leg, Net, build, case_of, loss_of
from ranks import HERE, group_of
from redundancy import passed_on
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.zero.clip import clip_grad_norm_
from ringdp.zero.optimizer import ZeroOptimizer
from torch import Tensor, nn


def on_this_rank(seed: int) -> dict[str, str]:
    """Digests of parameters, state and, on rank 0, buffers at the end. Collective."""
    case = case_of(seed)
    values: dict[str, Tensor] = {}
    state: dict[str, Any] = {}
    for number, leg in enumerate(case.legs):
        model = _model(case, case.seed + HERE.rank)  # the wrapper hands out rank 0's
        if values:
            model.load_state_dict(values)
        _freeze(model, leg)
        group = group_of("gloo") if case.path == "gloo" else None
        ddp = DistributedDataParallel(model, process_group=group, zero_stage=leg.stage, **leg.wrapper)
        optimizer = _optimizer_over(case, leg, ddp)
        if state:
            optimizer.load_state_dict(state)
        torch.manual_seed(_number(case, number, HERE.rank))
        for step in range(leg.steps):
            _step(case, number, ddp, optimizer, step)
        if case.refusal == "state not collected":
            optimizer.state_dict()
        state = passed_on(optimizer) if leg.stage else optimizer.state_dict()
        values = ddp.full_state_dict()
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)} if HERE.rank else set()
    return _digests(case, {n: v for n, v in values.items() if n not in buffers}, state)


def in_one_process(case: Case) -> dict[str, str]:
    """What rank 0 has to have."""
    model = _model(case, case.seed)
    optimizer = _plain_optimizer(case, model)
    for number, leg in enumerate(case.legs):
        if number:
            optimizer.load_state_dict(optimizer.state_dict())  # torch then gives some of it other types
        _freeze(model, leg)

        def loss(model: nn.Module, rank: int, step: int, micro: int, number: int = number, leg: Leg = leg) -> Tensor:
            if rank == 0 and micro == 0:
                _set_rates(case, leg, optimizer, step)
                if step == leg.edit:
                    _edit(model)
            if _is_absent(case, number, rank, step, micro):
                return torch.zeros((), requires_grad=True)
            return _loss(case, number, model, rank, step, micro)

        def weight(rank: int, step: int, number: int = number, leg: Leg = leg) -> float:
            return sum(_samples(case, number, rank, step, micro) for micro in range(leg.micros))

        def clip(_: int, limit: float | None = leg.clip) -> None:
            if limit is not None:
                clip_grad_norm_(model.parameters(), limit)

        one_process(
            model,
            optimizer,
            loss,
            ranks=case.ranks,
            steps=leg.steps,
            accumulate=leg.micros,
            weights=weight if leg.weighted else None,
            sync_each=leg.how == "each",
            seeds=[_number(case, number, rank) for rank in range(case.ranks)],
            on_gradients=clip,
        )
    return _digests(case, model.state_dict(), optimizer.state_dict())


def at_first(case: Case) -> dict[str, str]:
    """Digests of the parameters before any step."""
    return {name: _digest(parameter) for name, parameter in _model(case, case.seed).named_parameters()}


def _step(case: Case, number: int, ddp: DistributedDataParallel, optimizer: Any, step: int) -> None:
    leg = case.legs[number]
    if case.refusal == "unfrozen" and step == 1:
        ddp.module.enter.weight.requires_grad_(True)
    _set_rates(case, leg, optimizer, step)
    if step == leg.edit:
        if "gather" in leg.sharding:
            optimizer.wait()
        with ddp.gathered(writes=True) if leg.stage == 3 else nullcontext():
            _edit(ddp.module)
    _drop_gradients(leg, ddp, optimizer)
    for micro in range(leg.micros):
        quiet = leg.how != "each" and micro + 1 < leg.micros
        with ddp.no_sync() if quiet else nullcontext():
            _backward(case, number, ddp, step, micro)
    if case.refusal == "clipped by torch":
        nn.utils.clip_grad_norm_(ddp.parameters(), leg.clip)
    if leg.clip is not None:
        clip_grad_norm_(ddp.parameters(), leg.clip)
    optimizer.step()


def _backward(case: Case, number: int, ddp: DistributedDataParallel, step: int, micro: int) -> None:
    place = (case, number, HERE.rank, step, micro)
    if _is_absent(*place):
        ddp.backward(None, weight=0)
        return
    loss = _loss(case, number, ddp, HERE.rank, step, micro)
    if case.legs[number].weighted:
        ddp.backward(loss, weight=_samples(*place))
    else:
        loss.backward(retain_graph=case.refusal == "two backward passes")
    if case.refusal == "two backward passes":
        loss.backward()


def _drop_gradients(leg: Leg, ddp: DistributedDataParallel, optimizer: Any) -> None:
    if leg.drop == "wrapper":
        ddp.zero_grad()
    elif leg.drop == "module":
        ddp.module.zero_grad()
    else:
        optimizer.zero_grad(set_to_none=leg.drop != "zeros")


def _model(case: Case, seed: int) -> Net:
    return build(seed, case.dtype, case.width, case.parts)


def _freeze(model: nn.Module, leg: Leg) -> None:
    """A third of the parameters, but none of the last layer."""
    for index, (name, parameter) in enumerate(model.named_parameters()):
        parameter.requires_grad_(name.startswith("leave") or index % 3 != leg.frozen - 1)


def _optimizer_over(case: Case, leg: Leg, ddp: DistributedDataParallel) -> Any:
    if leg.stage == 0 or case.refusal == "an optimizer of torch":
        return _plain_optimizer(case, ddp.module)
    kind = getattr(torch.optim, case.optimizer)
    return ZeroOptimizer(_groups(case, ddp.module), kind, **leg.sharding, **case.defaults)


def _plain_optimizer(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    return getattr(torch.optim, case.optimizer)(_groups(case, model), **case.defaults)


def _groups(case: Case, model: nn.Module) -> list[dict[str, Any]]:
    """The optimizer's groups; parameters are dealt out one by one."""
    parameters = list(model.parameters())
    return [{"params": parameters[first :: case.groups]} for first in range(min(case.groups, len(parameters)))]


def _set_rates(case: Case, leg: Leg, optimizer: Any, step: int) -> None:
    for number, group in enumerate(optimizer.param_groups):
        rate = case.defaults["lr"] * leg.rates[step] / (1 + number)
        group["lr"] = torch.tensor(rate) if case.tensor_rate else rate


@torch.no_grad()
def _edit(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.mul_(0.75)


def _loss(case: Case, number: int, model: nn.Module, rank: int, step: int, micro: int) -> Tensor:
    seed, samples = _number(case, number, rank, step, micro), _samples(case, number, rank, step, micro)
    odd = (step + (0 if case.alike else rank)) % 2 == 1
    return loss_of(model, case.dtype, seed, samples, odd, "sum" if case.legs[number].weighted else "mean")


def _samples(case: Case, number: int, rank: int, step: int, micro: int) -> int:
    """How many this rank has; with weights there may be none, but for rank 0."""
    draw = Random(_number(case, number, rank, step, micro))
    none = case.legs[number].weighted and rank > 0 and draw.random() < 0.3
    return 0 if none else draw.randint(2, 5)


def _is_absent(case: Case, number: int, rank: int, step: int, micro: int) -> bool:
    return case.legs[number].how == "absent" and _samples(case, number, rank, step, micro) == 0


def _number(case: Case, *place: int) -> int:
    return Random(f"{case.seed} {place}").randrange(1 << 31)


def _digests(case: Case, values: dict[str, Tensor], state: dict[str, Any]) -> dict[str, str]:
    """By name of value; and by index and key of the state as an optimizer of torch takes it up, but for that of
    parameters without elements, of which there is none in shards.
    """
    optimizer = _plain_optimizer(case, _model(case, 0))
    optimizer.load_state_dict(state)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    found = {name: _digest(value) for name, value in values.items()}
    for index, parameter in enumerate(parameters):
        entry = optimizer.state[parameter] if parameter.numel() else {}
        found |= {f"state {index} {key}": _digest(value) for key, value in entry.items()}
    return found


def _digest(value: Any) -> str:
    """A hash of type, shape and bits; all NaNs are equal."""
    if not torch.is_tensor(value):
        return repr(value)
    flat = value.detach().contiguous().flatten()
    flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
    bits = flat.masked_fill(flat.isnan(), float("nan")) if flat.is_floating_point() else flat
    raw = bits.view(torch.uint8).numpy().tobytes() if bits.numel() else b""
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(raw).hexdigest()[:16]}"
