"""The arguments of `ringdp.DistributedDataParallel` that torch's class does not have, and what it refuses by name."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ringdp.compress.methods import Auto, Method
from ringdp.same_ranks import another_group
from ringdp.zero.flat import order_of

Order = Literal["rank", "rotated"]
_SIGNATURE = inspect.signature(DistributedDataParallel.__init__)
STOCK_ARGUMENTS = tuple(_SIGNATURE.parameters)[1:]
_MIXED_PRECISION = "mixed_precision"  # its text has the dtypes
_WHOLE_GRADIENTS = ("delay_all_reduce_named_params", "skip_all_reduce_unused_params", "mixed_precision")
_KEPT_BUFFERS = ("broadcast_buffers", "forward_sync_buffers")
_COMPRESSED = (torch.float32, torch.bfloat16, torch.float16)
_OF_ONE_RANK = ("device_ids", "output_device")  # need not be equal


@dataclass(frozen=True)
class Modes:
    """How gradients are averaged and sharded. Equal on all ranks.

    overlap: launch buckets while the backward pass computes; False: after it, one blocking collective each.
    order: of the sum: "rank" has the bits of one process; "rotated" is that of the textbook ring, or of the backend;
        None: the setting of a ringdp group, "rank" for other groups.
    zero_stage: 0, 1, 2 or 3: what is sharded.
    grad_dtype: torch.float32 averages and keeps 16-bit gradients in float32, from stage 2 on.
    prefetch: at stage 3, gather the next unit while one is in use.
    check_drift: compare the parameters of all ranks in every synchronised pass.
    micro_batches: how many a step has, whatever the number of ranks; None: each rank has its own.
    shard_leaves: from stage 2 on, add up their gradients in shards, leaf by leaf.
    compress: how less than all of the gradients is sent.
    """

    overlap: bool = True
    order: Order | None = None
    zero_stage: int = 0
    grad_dtype: torch.dtype | None = None
    prefetch: bool = True
    check_drift: bool = False
    micro_batches: int | None = None
    shard_leaves: bool = False
    compress: Method | None = None

    def __post_init__(self) -> None:
        if self.order not in ("rank", "rotated", None):
            raise ValueError(f"DistributedDataParallel: order={self.order!r}, must be 'rank', 'rotated' or None")
        if self.zero_stage not in (0, 1, 2, 3):
            raise ValueError(f"DistributedDataParallel: zero_stage={self.zero_stage}, must be 0, 1, 2 or 3")
        if not self.prefetch and self.zero_stage != 3:
            raise ValueError(
                f"DistributedDataParallel: prefetch=False with zero_stage={self.zero_stage}: only stage 3 gathers "
                "parameters: leave it out"
            )
        if self.check_drift and self.zero_stage == 3:
            raise ValueError(
                "DistributedDataParallel: check_drift=True with zero_stage=3: "
                "shards are no replicas to compare: leave it out"
            )
        if self.grad_dtype not in (None, torch.float32):
            raise ValueError(f"DistributedDataParallel: grad_dtype={self.grad_dtype}, must be torch.float32 or None")
        if self.grad_dtype is not None and self.zero_stage < 2:
            raise ValueError(
                f"DistributedDataParallel: grad_dtype={self.grad_dtype} with zero_stage={self.zero_stage}: "
                ".grad has the parameter's dtype there: use zero_stage=2 or leave it out"
            )
        if self.micro_batches is not None:
            self._check_leaves(self.micro_batches)
        if self.shard_leaves and (self.micro_batches is None or self.zero_stage < 2):
            raise ValueError(
                f"DistributedDataParallel: shard_leaves=True with micro_batches={self.micro_batches} and "
                f"zero_stage={self.zero_stage}: it is for micro_batches=M from stage 2 on, where gradients have shards"
            )

        if self.compress is not None:
            self._check_compression(self.compress)

    def check_group(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """ValueError if the group has an order or a wire type that would change bits that are promised."""
        if self.micro_batches is not None:
            check_sums(
                group, device, f"micro_batches={self.micro_batches} promises the same bits at every number of ranks"
            )
        elif isinstance(self.compress, Auto):
            check_sums(group, device, f"compress={self.compress} promises those of one process")

    def _check_compression(self, method: Method) -> None:
        refused = {
            "zero_stage": (self.zero_stage == 3, "units are reduced as they come: use zero_stage=2"),
            "micro_batches": (self.micro_batches is not None, "residuals depend on the number of ranks"),
            "order": (self.order == "rotated", "gradients are summed in rank order"),
            "check_drift": (self.check_drift, "no checksums travel with codes"),
            "overlap": (not self.overlap, "buckets are compressed in a thread of their own"),
        }
        for name, (is_refused, why) in refused.items():
            if is_refused:
                raise NotImplementedError(
                    f"DistributedDataParallel: {name}={getattr(self, name)!r} with compress={method}: {why}"
                )

    def _check_leaves(self, number: int) -> None:
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"DistributedDataParallel: micro_batches={number!r}, must be a whole number of at least 1")
        if self.order == "rotated":
            raise ValueError(
                f"DistributedDataParallel: order='rotated' with micro_batches={number}, whose sums follow one tree: "
                "leave it out"
            )
        if self.check_drift:
            raise NotImplementedError(
                f"DistributedDataParallel: check_drift=True with micro_batches={number} is not there yet: leave it out"
            )


def check_arguments(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], modes: Modes
) -> dict[str, Any]:
    """Those arguments of torch's class that are flags, numbers or lists of numbers, by name.

    TypeError names an argument that the installed torch does not have, NotImplementedError one that ringdp does not.
    """
    for name in kwargs:
        if name not in STOCK_ARGUMENTS:
            raise TypeError(
                f"DistributedDataParallel of torch {torch.__version__} has no argument {name!r}: "
                f"it has {', '.join(STOCK_ARGUMENTS)}; ringdp adds overlap, order, zero_stage, grad_dtype, "
                "units, prefetch, init, check_drift, micro_batches, shard_leaves, compress"
            )
    if torch._dynamo.utils.get_optimize_ddp_mode() == "python_reducer":
        raise NotImplementedError(
            "DistributedDataParallel: torch._dynamo.config.optimize_ddp='python_reducer' replaces the reducer by "
            "traced collectives, which ringdp's class does not do: set it to 'ddp_optimizer' (the default)"
        )
    arguments = complete_arguments(module, args, kwargs)
    if modes.zero_stage >= 2:
        _refuse_with_shards(arguments, modes.zero_stage)
    if arguments.get(_MIXED_PRECISION) is not None and all(p.device.type == "cpu" for p in module.parameters()):
        raise NotImplementedError(
            f"DistributedDataParallel: mixed_precision={arguments[_MIXED_PRECISION]!r} of a model on the CPU: "
            "torch's hooks for it need an accelerator's events. Use torch.autocast, or a model in bfloat16"
        )
    if modes.micro_batches is not None:
        _refuse_with_leaves(module, arguments, modes.micro_batches)
    if modes.compress is not None:
        _refuse_with_compression(module, arguments, modes)
    if modes.zero_stage < 3:
        _refuse_meta(module, modes.zero_stage)
    given = {name: value for name, value in arguments.items() if name not in _OF_ONE_RANK}
    return {name: value for name, value in given.items() if _is_plain(value) or name == _MIXED_PRECISION}


def complete_arguments(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of torch's class by name, with its defaults."""
    bound = _SIGNATURE.bind(None, module, *args, **kwargs)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name != "self"}


def _refuse_meta(module: torch.nn.Module, zero_stage: int) -> None:
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            raise NotImplementedError(
                f"DistributedDataParallel: parameter {name} is on the meta device with zero_stage={zero_stage}, where "
                "every rank has all parameters: use zero_stage=3, or build the model on a real device"
            )


def _refuse_with_shards(arguments: dict[str, Any], zero_stage: int) -> None:
    """NotImplementedError names an argument whose gradients would not go through the shards."""
    for name in _WHOLE_GRADIENTS:
        if arguments.get(name):
            raise NotImplementedError(
                f"DistributedDataParallel: {name}={arguments[name]!r} with zero_stage={zero_stage}: "
                "its gradients would not be sharded. Use zero_stage=1, or leave it out"
            )


def _refuse_with_leaves(module: torch.nn.Module, arguments: dict[str, Any], micro_batches: int) -> None:
    refused = [(name, "it is not there yet") for name in (*_WHOLE_GRADIENTS, "static_graph") if arguments.get(name)]
    kept = [name for name in _KEPT_BUFFERS if arguments.get(name) is False]
    refused += [(name, "buffers are those that micro-batch 0 leaves") for name in kept]
    for name, why in refused:
        raise NotImplementedError(
            f"DistributedDataParallel: {name}={arguments[name]!r} with micro_batches={micro_batches}: {why}; "
            "leave it out"
        )
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.SyncBatchNorm) or getattr(layer, "sparse", False) is True:
            kind = type(layer).__name__
            what = "statistics would depend on which ranks run" if kind == "SyncBatchNorm" else "gradients are sparse"
            raise NotImplementedError(
                f"DistributedDataParallel: layer {name} is a {kind}, whose {what}, with micro_batches={micro_batches}: "
                "use BatchNorm, or sparse=False"
            )


def _refuse_with_compression(module: torch.nn.Module, arguments: dict[str, Any], modes: Modes) -> None:
    method = modes.compress
    for name in (*_WHOLE_GRADIENTS, "find_unused_parameters"):
        if arguments.get(name):
            raise NotImplementedError(
                f"DistributedDataParallel: {name}={arguments[name]!r} with compress={method}, which needs the "
                "gradients of all parameters in every step: leave it out"
            )
    for name, layer in module.named_modules():
        if getattr(layer, "sparse", False) is True:
            raise NotImplementedError(
                f"DistributedDataParallel: layer {name} has sparse gradients, with compress={method}: use sparse=False"
            )
    for name, parameter in module.named_parameters():
        is_served = parameter.device.type == "cpu" and parameter.dtype in _COMPRESSED
        if parameter.requires_grad and not is_served:
            raise NotImplementedError(
                f"DistributedDataParallel: parameter {name} is {parameter.dtype} on {parameter.device}, with compress="
                f"{method}, which is for float32, bfloat16 and float16 on the CPU: leave it out"
            )
        if parameter.requires_grad and modes.zero_stage == 2 and order_of(parameter):
            raise NotImplementedError(
                f"DistributedDataParallel: parameter {name} of shape {list(parameter.shape)} has strides "
                f"{list(parameter.stride())}, with compress={method} and zero_stage=2: shards are cut in the order of "
                "memory, and blocks of codes in that of dimensions: make it contiguous, or use zero_stage=1"
            )


def check_sums(group: dist.ProcessGroup, device: torch.device, why: str) -> None:
    """ValueError if the group does not sum float32 in rank order. why: it must."""
    options = ring_options(group, device)
    for name, wanted in (("order", "rank"), ("wire", "fp32")):
        if options is not None and (value := options.get(name)) != wanted:
            raise ValueError(
                f"DistributedDataParallel: the process group was made with {name}={value!r}, and {why}: use "
                f"{name}={wanted!r}"
            )


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float))


def group_for(group: dist.ProcessGroup, device: torch.device, order: Order | None) -> dist.ProcessGroup:
    """A group whose collectives sum in this order: `group`, or a new one of the same ranks (collective).

    ValueError if order="rank" is asked of a ringdp group that was made with another order.
    """
    options = ring_options(group, device)
    if options is None or order is None or group.size() == 1:
        return group
    if order == "rank" and (made_with := options.get("order")) != "rank":
        raise ValueError(
            f"DistributedDataParallel: order='rank', but the process group was made with order={made_with!r}"
        )
    if order == "rank" or (options.get("order"), options.get("algorithm")) == ("rotated", "ring"):
        return group
    return group_like(group, options, order="rotated", algorithm="ring")  # the textbook's


def ring_options(group: dist.ProcessGroup, device: torch.device) -> Any:
    """The options of a group's ringdp backend; None for other backends, and for groups written in Python."""
    from ringdp.backend import Options

    try:
        options = group._get_backend(device).options
    except (RuntimeError, AttributeError):
        return None
    return options if isinstance(options, Options.__base__) else None


def group_like(group: dist.ProcessGroup, options: Any, **settings: str) -> dist.ProcessGroup:
    """Another one of the same ranks and backends. Collective.

    options: its ring_options(); if there are any, the new group differs in these settings only.
    """
    if options is None:
        return another_group(group, backend=dist.get_backend_config(group))
    changed = options.__copy__()
    for name, value in settings.items():
        changed.set(name, value)
    return another_group(group, backend="ringdp", pg_options=changed)
