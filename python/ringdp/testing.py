"""The reference that defines "the bits of one process", and a hash to compare a run of N ranks with it.

    losses = one_process(model, optimizer, loss_of, ranks=4, steps=20)
    assert parameters_hash(model) == hash_of_the_same_training_on_four_ranks

Everything runs on one intra-op thread, because the order of a sum inside a kernel may depend on the number of threads.
The run on N ranks must use one thread too: `torch.set_num_threads(1)`.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import hashlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ringdp.compress.methods import Method, method_of
from ringdp.compress.played import PlayedRanks
from ringdp.elastic.leaf import leaf as leaf_scope
from ringdp.local.options import Options
from ringdp.text.units import counted
from ringdp.zero import registry

LossOf = Callable[[nn.Module, int, int, int], Tensor]
Gradients = dict[str, Tensor]

__all__ = ["LocalRun", "one_process", "one_process_local", "parameters_hash"]


def one_process(
    model: nn.Module,
    optimizer: Optimizer,
    loss_of: LossOf,
    *,
    ranks: int | None = None,
    steps: int,
    micro_batches: int | None = None,
    accumulate: int = 1,
    divide: Literal["once", "first"] = "once",
    weights: Callable[[int, int], float] | None = None,
    sync_each: bool = False,
    seeds: Sequence[int] | None = None,
    on_gradients: Callable[[int], None] | None = None,
    compress: str | Method | None = None,
) -> list[float]:
    """Train `model` in this process the way `ranks` ranks would train it together; or any number of them.

    model, optimizer: changed in place. Buffers end as rank 0's micro-batches leave them (BatchNorm).
    loss_of(model, rank, step, micro): the scalar on which that rank calls backward(); micro: 0..accumulate-1.
    micro_batches: how many a step has for a wrapper with this argument, at any number of ranks (leave `ranks` out).
        loss_of gets rank 0 and the number of the micro-batch, and runs inside ringdp.leaf; weights(micro, step) is its
        sample count; seeds: one number, that of ringdp.leaf. accumulate, divide and sync_each keep their defaults.
    divide: "once" folds ((g0 + g1) + g2) + ... and divides the sum by `ranks`; "first" multiplies each
        gradient by 1 / ranks in its own type before the fold, as torch's DistributedDataParallel does.
        16-bit gradients are folded in fp32 and rounded once. A NaN in the result is always the positive quiet one.
    weights(rank, step): that rank's sample count in that step, for losses that are SUMS over samples. "once"
        divides by the step's total instead of `ranks`; "first" scales every loss by ranks / total.
    sync_each: fold and divide after every micro-batch and add up those means. Default: each rank first adds up
        its micro-batches (as under no_sync), then the partial sums are folded once.
    seeds: one torch seed per rank, for dropout. Default: every rank starts from the caller's RNG state.
    on_gradients(step): called with the mean gradients in place, before the optimizer (clipping, schedules).
    compress: as for the wrapper: what is left out of gradients and means is added to the next. Not with
        micro_batches, weights, sync_each or divide="first".

    Returns each step's loss, summed over micro-batches and divided as the gradients are.
    A parameter that only some ranks use gets the fold of their gradients; the grad of one that none uses stays None.
    The RNG state and the number of threads are restored at the end. Raises ValueError on bad arguments.
    """
    method = method_of(compress)
    if method is not None and (micro_batches is not None or weights or sync_each or divide != "once"):
        raise ValueError(f"one_process: compress={compress!r} with micro_batches, weights, sync_each or divide='first'")
    if micro_batches is not None:
        _check(micro_batches, steps, accumulate, divide, None, "micro_batches")
        if accumulate != 1 or divide != "once" or sync_each or len(seeds or [0]) != 1:
            raise ValueError(
                f"one_process: micro_batches={micro_batches} with accumulate, divide, sync_each or several seeds"
            )
        return _one_tree(model, optimizer, loss_of, micro_batches, steps, weights, (seeds or [0])[0], on_gradients)
    if ranks is None:
        raise ValueError("one_process: neither ranks nor micro_batches is given")
    _check(ranks, steps, accumulate, divide, seeds)
    losses = []
    with _one_thread(), torch.random.fork_rng(devices=[]):
        world = _VirtualRanks(model, ranks, seeds)
        played = PlayedRanks(method, ranks, model, optimizer) if method is not None else None
        for step in range(steps):
            total = float(sum(weights(rank, step) for rank in range(ranks)) if weights else ranks)
            if not total > 0:
                raise ValueError(f"one_process: the weights of step {step} sum up to {total}, must be above 0")
            scale = ranks / total if divide == "first" else 1.0
            micros = range(accumulate)
            mean: Gradients = {}
            loss = 0.0
            for part in [[k] for k in micros] if sync_each else [micros]:
                part_loss, by_rank = world.run(loss_of, step, part, scale)
                loss += part_loss
                _add(mean, played.mean(by_rank) if played else _mean(by_rank, ranks, total, divide))
            for name, parameter in model.named_parameters():
                parameter.grad = mean.get(name)
            if on_gradients:
                on_gradients(step)
            optimizer.step()
            losses.append(loss / (ranks if divide == "first" else total))
    return losses


def _one_tree(
    model: nn.Module,
    optimizer: Optimizer,
    loss_of: LossOf,
    micro_batches: int,
    steps: int,
    weights: Callable[[int, int], float] | None,
    seed: int,
    on_gradients: Callable[[int], None] | None,
) -> list[float]:
    """The definition of DistributedDataParallel(micro_batches=M): all gradients are kept, and added up by recursion."""
    losses = []
    with _one_thread():
        for step in range(steps):
            before = _buffers_of(model)
            after, by_micro, loss = before, [], 0.0
            for micro in range(micro_batches):
                _set_buffers(model, before)
                model.zero_grad(set_to_none=True)
                with leaf_scope(step, micro, seed=seed):
                    scalar = loss_of(model, 0, step, micro)
                    scalar.backward()
                loss += float(scalar.detach())
                by_micro.append(_gradients(model))
                if micro == 0:
                    after = _buffers_of(model)
            _set_buffers(model, after)
            counts = [float(weights(micro, step)) if weights else 1.0 for micro in range(micro_batches)]
            total = _tree(counts, operator.add)
            dtypes = {name: gradient.dtype for gradients in by_micro for name, gradient in gradients.items()}
            wide = [{name: _widened(gradient) for name, gradient in gradients.items()} for gradients in by_micro]
            mean = _divided(_tree(wide, _both), dtypes, total)
            for name, parameter in model.named_parameters():
                parameter.grad = mean.get(name)
            if on_gradients:
                on_gradients(step)
            optimizer.step()
            losses.append(loss / total)
    return losses


def _tree(leaves: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
    """The sum of the left half plus the sum of the right half; the left half has the odd one."""
    if len(leaves) == 1:
        return leaves[0]
    middle = math.ceil(len(leaves) / 2)
    return add(_tree(leaves[:middle], add), _tree(leaves[middle:], add))


def _both(left: Gradients, right: Gradients) -> Gradients:
    """Their sum; a gradient that one of them lacks is the other's."""
    return {**left, **{name: left[name] + term if name in left else term for name, term in right.items()}}


@dataclass
class LocalRun:
    """What one_process_local leaves.

    models, optimizers: of each worker. outer, momentum: float32, by parameter. residuals: what codes have left out,
    flat, by fragment; of each worker, and at the end of the means. on_the_way: means, flat, of fragments that have not
    arrived. losses: of each step, the mean over workers; of a log, of each of its outer steps, over all steps in it.
    """

    models: list[nn.Module]
    optimizers: list[list[Optimizer]]
    outer: Gradients
    momentum: Gradients
    residuals: list[list[Tensor]]
    on_the_way: dict[int, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)

    def trained(self, worker: int) -> dict[str, nn.Parameter]:
        """The parameters of a worker that need gradients, by name."""
        return {name: p for name, p in self.models[worker].named_parameters() if p.requires_grad}


def one_process_local(
    model: nn.Module,
    inner: Callable[[list[nn.Parameter]], Optimizer | Sequence[Optimizer]],
    loss_of: Callable[[nn.Module, int, int], Tensor],
    *,
    workers: int,
    steps: int | Sequence[int] | None = None,
    every: int,
    outer_lr: float = 0.7,
    momentum: float = 0.9,
    nesterov: bool = True,
    start: int = 0,
    fragments: int = 1,
    delay: int = 0,
    alpha: float = 0.0,
    compress: Literal["int8", "int4", "topk", "topk-2bit"] | None = None,
    log: Sequence[Sequence[tuple[int, int]]] | None = None,
    seed: int = 0,
) -> LocalRun:
    """The definition of `ringdp.DiLoCo`, whose arguments these are: one process with a copy of the model per worker.

    loss_of(model, worker, step): the scalar on which that worker calls backward(); it runs inside ringdp.leaf. model
    ends with the outer parameters and worker 0's buffers. Raises what DiLoCo does on bad arguments.
    log: `local.log` of a run with quorum=, which is replayed. steps: then how many each worker has made in that run;
        default: those of its rounds in the log.
    """
    quorum = {} if log is None else {"quorum": 1, "rounds": max(1, len(log))}
    given = (workers, every, outer_lr, momentum, nesterov, start, fragments, delay, alpha, compress, seed)
    Options(*given, **quorum).check(1)
    if log is None and not isinstance(steps, int):
        raise ValueError(f"one_process_local: steps={steps!r}, must be a whole number without log=")
    with _one_thread():
        run = _begun(model, inner, workers, parts := _fragments(model, fragments))
        make_pass = functools.partial(_pass, run, loss_of, seed=seed)
        outside = functools.partial(_step_outside, run, outer_lr, momentum, nesterov and momentum > 0)
        if log is not None:
            _replay(
                run, log, steps, every, make_pass, lambda begun: outside(_mean_walked(run, 0, begun, compress), *parts)
            )
        for step in range(steps if log is None else 0):
            run.losses.append(sum(make_pass(worker, step) for worker in range(workers)) / workers)
            alone = step + 1 - start  # steps that workers have made alone
            if alone > 0:
                for optimizers in run.optimizers:
                    _step_all(optimizers)
            else:
                _step_with_mean(run)
            for number, part in enumerate(parts):
                place = (number + 1) * every // fragments % every  # of its leaving, among `every` steps
                if alone > 0 and alone % every == place:
                    begun = {worker: {name: run.outer[name] for name in part} for worker in range(workers)}
                    run.on_the_way[number] = _mean_walked(run, number, begun, compress)
                if alone > delay and (alone - delay) % every == place:
                    outside(run.on_the_way.pop(number), part)
                    for worker in range(workers):
                        _take(run.trained(worker), run.outer, part, alpha)
            if alone <= 0 or alone % every == 0:
                for one in run.models:
                    _set_buffers(one, dict(run.models[0].named_buffers()))
        _take(dict(model.named_parameters()), run.outer, list(run.outer), 0.0)
        _set_buffers(model, dict(run.models[0].named_buffers()))
    return run


def _replay(
    run: LocalRun,
    log: Sequence[Sequence[tuple[int, int]]],
    steps: int | Sequence[int] | None,
    every: int,
    make_pass: Callable[[int, int], float],
    step_outside: Callable[[Mapping[int, Gradients]], None],
) -> None:
    """Each outer step takes what workers have walked in a round; they go on from there, others do not know of it."""
    made, begun = [0] * len(run.models), [dict(run.outer)] * len(run.models)

    def walk(worker: int, total: int) -> list[float]:
        losses = []
        for step in range(made[worker], total):
            losses.append(make_pass(worker, step))
            _step_all(run.optimizers[worker])
        made[worker] = total
        return losses

    for number, taken in enumerate(log):
        if not taken:
            raise ValueError(f"one_process_local: log: outer step {number} takes nothing: must be of a worker at least")
        for place, (worker, round_) in enumerate(taken):
            twice = worker in [other for other, _ in taken[:place]]
            if twice or not 0 <= worker < len(made) or round_ * every != made[worker]:
                raise ValueError(
                    f"one_process_local: log: outer step {number} takes round {round_} of worker {worker}: must be the "
                    f"next round of one of {counted(len(made), 'worker')}"
                )
        losses = [loss for worker, round_ in taken for loss in walk(worker, (round_ + 1) * every)]
        run.losses.append(sum(losses) / len(losses))
        step_outside({worker: begun[worker] for worker, _ in sorted(taken)})
        for worker, _ in taken:
            _take(run.trained(worker), run.outer, list(run.outer), 0.0)
            begun[worker] = dict(run.outer)
    totals = made if steps is None else steps
    if (
        isinstance(totals, int)
        or len(totals) != len(made)
        or not all(0 <= total - own <= every for total, own in zip(totals, made, strict=True))
    ):
        raise ValueError(
            f"one_process_local: steps={steps!r} with log=: must be of each of {counted(len(made), 'worker')}, at most "
            f"a round of {every} more than {made}, which are in the log"
        )
    for worker, total in enumerate(totals):
        walk(worker, total)


def _begun(model: nn.Module, inner: Callable[..., Any], workers: int, parts: Sequence[Sequence[str]]) -> LocalRun:
    run = LocalRun([copy.deepcopy(model) for _ in range(workers)], [], {}, {}, [])
    for worker in range(workers):
        made = inner(list(run.trained(worker).values()))
        run.optimizers.append([made] if isinstance(made, Optimizer) else list(made))
    run.outer = _outer_of(run)
    run.momentum = {name: torch.zeros_like(value) for name, value in run.outer.items()}
    sizes = [sum(run.outer[name].numel() for name in part) for part in parts]
    run.residuals = [[torch.zeros(size, dtype=torch.float32) for size in sizes] for _ in range(workers + 1)]
    return run


def _outer_of(run: LocalRun) -> Gradients:
    return {name: parameter.detach().float().clone() for name, parameter in run.trained(0).items()}


def _pass(run: LocalRun, loss_of: Callable[..., Tensor], worker: int, step: int, seed: int) -> float:
    """A worker's gradients of a step; its loss."""
    with leaf_scope(step, worker, seed=seed):
        loss = loss_of(run.models[worker], worker, step)
        loss.backward()
    return float(loss.detach())


def _mean_walked(run: LocalRun, number: int, begun: Mapping[int, Gradients], compress: str | None) -> Tensor:
    """Of a fragment that leaves: from the outer parameters with which these workers have begun, to their own."""
    workers, sent = len(run.models), []
    for worker, outer in begun.items():
        own = run.trained(worker)
        ways = [outer[name].to(own[name].dtype).float() - own[name].detach().float() for name in outer]
        sent.append(_sent(torch.cat([way.flatten() for way in ways]), run.residuals[worker][number], compress))
    mean = _tree(sent, operator.add) / len(sent)
    mean[mean.isnan()] = math.nan
    return _sent(mean, run.residuals[workers][number], compress, workers)


def _step_outside(
    run: LocalRun, rate: float, momentum: float, nesterov: bool, mean: Tensor, part: Sequence[str]
) -> None:
    """SGD of the outer parameters of a fragment that arrives."""
    for name, flat in zip(part, mean.split([run.outer[name].numel() for name in part]), strict=True):
        gradient = flat.view_as(run.outer[name])
        run.momentum[name] = run.momentum[name] * momentum + gradient
        ahead = gradient + run.momentum[name] * momentum if nesterov else run.momentum[name]
        run.outer[name] = run.outer[name] - ahead * rate


@torch.no_grad()
def _take(own: Mapping[str, nn.Parameter], outer: Gradients, part: Sequence[str], alpha: float) -> None:
    """Parameters become the outer ones, mixed with alpha of their own values."""
    for name in part:
        own[name].copy_(own[name].float() * alpha + outer[name] * (1 - alpha) if alpha else outer[name])


def _fragments(model: nn.Module, fragments: int) -> list[list[str]]:
    """Names by fragment: a parameter is in the one in which its middle lies."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad}
    parts: list[list[str]] = [[] for _ in range(fragments)]
    before = 0
    for name, size in sizes.items():
        middle = (before + size / 2) / sum(sizes.values())
        parts[min(int(middle * fragments), fragments - 1)].append(name)
        before += size
    return parts


def _sent(values: Tensor, lost: Tensor, compress: str | None, workers: int = 1) -> Tensor:
    """What arrives of values and of what was lost before; what is lost now replaces that. workers: who sent values."""
    if compress is None:
        return values
    wanted = values + lost
    blocks = wanted.split(4096 if compress == "topk-2bit" else 256)
    arrives = torch.cat([_coded(block, compress, workers) for block in blocks])
    lost.copy_((wanted - arrives).nan_to_num(0.0, 0.0, 0.0))  # there is no residual of what is not finite
    return arrives


def _coded(block: Tensor, compress: str, workers: int) -> Tensor:
    """A block as its codes give it back."""
    if compress == "topk":
        return torch.where(_largest(block, 4 * workers), block.bfloat16().float(), 0.0)
    if compress == "topk-2bit":
        return _in_two_bits(torch.cat([block, block.new_zeros(4096 - len(block))]), 64 * workers)[: len(block)]
    most = {"int8": 127, "int4": 7}[compress]
    if not block.isfinite().all():
        return torch.full_like(block, math.nan)
    limits = torch.finfo(torch.float32)
    scale = (block.abs().max() / most).clamp(limits.tiny, limits.max / most * (1 - limits.eps))
    fraction, exponent = torch.frexp(scale)
    power = torch.ldexp(torch.ones_like(scale), exponent - (fraction == 0.5).int())  # which often loses nothing
    if torch.equal((block / power).round(), block / power):
        scale = power
    return ((block / scale).round() + 0.0) * scale  # + 0.0: codes have no -0.0


def _largest(block: Tensor, kept: int) -> Tensor:
    """Which elements are so many largest ones, of equal ones the first; NaN is as large as an infinity."""
    sizes = block.abs().nan_to_num(math.inf, math.inf).tolist()
    order = sorted(range(len(block)), key=lambda place: -sizes[place])
    largest = torch.zeros(len(block), dtype=torch.bool)
    largest[order[:kept]] = True
    return largest


def _in_two_bits(block: Tensor, kept: int) -> Tensor:
    """The largest elements with their signs, and as size the mean of those above the mean of all, or of the others."""
    largest = _largest(block, kept)
    sizes = block[largest].abs()
    middle = _by_halves(sizes) / len(sizes) if sizes.all() else torch.tensor(0.0)
    found = torch.zeros_like(block)
    for chosen in (sizes > middle, ~(sizes > middle)):
        size = (_by_halves(torch.where(chosen, sizes, 0.0)) / max(1, int(chosen.sum()))).bfloat16().float()
        if not size.isfinite():
            return torch.full_like(block, math.nan)
        found[largest] = torch.where(chosen, block[largest].sign() * size, found[largest])
    return found


def _by_halves(values: Tensor) -> Tensor:
    """Their sum: the first half of a power of two of them, with zeros at the end, plus the second one, and so on."""
    values = torch.cat([values, values.new_zeros((1 << (len(values) - 1).bit_length()) - len(values))])
    while len(values) > 1:
        values = values[: len(values) // 2] + values[len(values) // 2 :]
    return values[0]


def _step_all(optimizers: Iterable[Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _step_with_mean(run: LocalRun) -> None:
    """A synchronous step of all workers: the definition of micro_batches=M."""
    by_worker = [_gradients(one) for one in run.models]
    dtypes = {name: gradient.dtype for gradients in by_worker for name, gradient in gradients.items()}
    wide = [{name: _widened(gradient) for name, gradient in gradients.items()} for gradients in by_worker]
    mean = _divided(_tree(wide, _both), dtypes, len(run.models))
    for one, optimizers in zip(run.models, run.optimizers, strict=True):
        for name, parameter in one.named_parameters():
            parameter.grad = mean[name].clone() if name in mean else None
        _step_all(optimizers)
    run.outer = _outer_of(run)


def parameters_hash(module: nn.Module) -> str:
    """Hex sha256 over the parameters in name order: name, dtype, shape, bytes. Looks through DDP.

    Collective for a model whose parameters are in shards (zero_stage=3).
    """
    if isinstance(module, DistributedDataParallel):
        module = module.module
    digest = hashlib.sha256()
    for name, parameter in sorted(_whole_parameters(module).items()):
        flat = parameter.detach().cpu().contiguous()
        digest.update(f"{name} {flat.dtype} {tuple(flat.shape)}\0".encode())
        digest.update(ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b"")
    return digest.hexdigest()


def _whole_parameters(module: nn.Module) -> dict[str, Tensor]:
    named = dict(module.named_parameters())
    wrappers = (registry.wrapper_of(parameter) for parameter in named.values())
    sharded = next((w for w in wrappers if w is not None and w.zero_stage == 3), None)
    return named if sharded is None else {n: v for n, v in sharded.full_state_dict().items() if n in named}


class _VirtualRanks:
    """The ranks, one after the other on one model, each with its own RNG state and rank 0's buffers."""

    def __init__(self, model: nn.Module, ranks: int, seeds: Sequence[int] | None) -> None:
        self._model = model
        caller = torch.get_rng_state()
        self._rng = [torch.Generator().manual_seed(seed).get_state() for seed in seeds] if seeds else [caller] * ranks

    def run(self, loss_of: LossOf, step: int, micros: Iterable[int], scale: float) -> tuple[float, list[Gradients]]:
        """The summed loss and each rank's gradients (absent where unused), accumulated over `micros`."""
        before = _buffers_of(self._model)
        after = before
        loss, by_rank = 0.0, []
        for rank in range(len(self._rng)):
            _set_buffers(self._model, before)
            torch.set_rng_state(self._rng[rank])
            self._model.zero_grad(set_to_none=True)
            for micro in micros:
                scaled = loss_of(self._model, rank, step, micro) * scale
                scaled.backward()
                loss += float(scaled.detach())
            self._rng[rank] = torch.get_rng_state()
            by_rank.append(_gradients(self._model))
            if rank == 0:
                after = _buffers_of(self._model)
        _set_buffers(self._model, after)
        return loss, by_rank


def _gradients(model: nn.Module) -> Gradients:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for name, gradient in found.items():
        if gradient.layout != torch.strided:
            raise ValueError(f"one_process: the gradient of {name} is sparse; make it dense (sparse=False)")
    return {name: gradient.detach().clone() for name, gradient in found.items()}


def _buffers_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


@torch.no_grad()
def _set_buffers(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """What the model has registered since then, or made of another shape, such as a cache, stays as it is."""
    for name, buffer in model.named_buffers():
        if (value := values.get(name)) is not None and value.shape == buffer.shape:
            buffer.copy_(value)


def _mean(by_rank: Sequence[Gradients], ranks: int, total: float, divide: str) -> Gradients:
    """Fold the gradients in rank order and divide; 16-bit gradients are widened first and rounded last."""
    sums: Gradients = {}
    dtypes: dict[str, torch.dtype] = {}
    for gradients in by_rank:
        for name, gradient in gradients.items():
            dtypes[name] = gradient.dtype
            term = gradient.mul_(1.0 / ranks) if divide == "first" else gradient
            _add(sums, {name: _widened(term)})
    return _divided(sums, dtypes, total if divide == "once" else 1.0)


def _widened(gradient: Tensor) -> Tensor:
    return gradient.float() if gradient.dtype in (torch.float16, torch.bfloat16) else gradient


def _divided(sums: Gradients, dtypes: dict[str, torch.dtype], total: float) -> Gradients:
    """Divided once and rounded once."""
    for fold in sums.values():
        _as_reals(fold).div_(total)
    means = {name: fold.to(dtypes[name]) for name, fold in sums.items()}
    for mean in map(_as_reals, means.values()):
        mean.masked_fill_(mean.isnan(), math.nan)  # its sign and payload depend on the machine
    return means


def _as_reals(tensor: Tensor) -> Tensor:
    """A complex number's parts are divided each by itself, as between ranks."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _add(sums: Gradients, terms: Gradients) -> None:
    """Sums += terms, in place and by name."""
    for name, term in terms.items():
        if name in sums:
            sums[name].add_(term)
        else:
            sums[name] = term


@contextmanager
def _one_thread() -> Iterator[None]:
    """One intra-op thread inside, the caller's number outside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check(
    ranks: int, steps: int, accumulate: int, divide: str, seeds: Sequence[int] | None, noun: str = "ranks"
) -> None:
    for name, value, least in ((noun, ranks, 1), ("steps", steps, 0), ("accumulate", accumulate, 1)):
        if value < least:
            raise ValueError(f"one_process: {name}={value}, must be at least {least}")
    if divide not in ("once", "first"):
        raise ValueError(f"one_process: divide={divide!r}, must be 'once' or 'first'")
    if seeds is not None and len(seeds) != ranks:
        raise ValueError(
            f"one_process: {counted(len(seeds), 'seed')} for {counted(ranks, 'rank')}, must be one per rank"
        )
