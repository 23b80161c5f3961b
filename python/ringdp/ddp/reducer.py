"""ringdp's reducer with the method names that torch's DistributedDataParallel calls."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ringdp import _native
from ringdp.ddp import settings, unaveraged
from ringdp.ddp.leaf_steps import LeafSteps
from ringdp.ddp.modes import Modes, group_for
from ringdp.same_ranks import timeout_of
from ringdp.zero.gradients import StandIns

if TYPE_CHECKING:
    from ringdp.compress.hook import Compression

_C = _native.load()
_OWN_BUCKET = 1 << 19  # default: copying so many bytes in and out takes longer than one collective more
_SHARDED_CAP = 8 << 20  # default from stage 2 on, where two buckets at a time need memory beside the gradients


def bucket_limits(ddp: Any, *, sharded: bool = False) -> list[int]:
    """Bytes at which the first, second, ... bucket is full, from the wrapper's bucket arguments."""
    if getattr(ddp, "bucket_bytes_cap_list", None):
        return list(ddp.bucket_bytes_cap_list)
    if ddp.bucket_bytes_cap_default:
        cap = min(_SHARDED_CAP, ddp.bucket_bytes_cap) if sharded else ddp.bucket_bytes_cap
        return [min(dist._DEFAULT_FIRST_BUCKET_BYTES, cap), cap]
    return [ddp.bucket_bytes_cap]


def _own_bucket_bytes(ddp: Any) -> int:
    """From how many bytes on a gradient has a bucket of its own, where it can be reduced in place; 0: no such rule."""
    return _OWN_BUCKET if ddp.bucket_bytes_cap_default and not getattr(ddp, "bucket_bytes_cap_list", None) else 0


def mean_over(group: dist.ProcessGroup, device: torch.device, modes: Modes) -> Any:
    """The mean over ranks as a reducer with these modes computes it: `start(flat, divisor).finish()`."""
    return _C.Mean(group_for(group, device, modes.order), device, modes.order != "rotated")


class Reducer(_C.Reducer):
    """One per wrapper. Inherited methods are documented in _C.pyi; those defined here are called by torch's class."""

    def __init__(
        self,
        ddp: Any,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
        sparse: Sequence[bool],
        modes: Modes,
        *,
        made_locally: bool,
    ) -> None:
        self._group_for = functools.partial(group_for, device=ddp.device, order=modes.order)
        options = _C.ReducerOptions(
            bucket_limits=bucket_limits(ddp, sharded=modes.zero_stage >= 2),
            find_unused=ddp.find_unused_parameters,
            gradient_as_bucket_view=ddp.gradient_as_bucket_view and modes.zero_stage < 2,
            batched_copy=getattr(ddp, "batched_grad_copy", False),
            skip_unused=getattr(ddp, "skip_all_reduce_unused_params", False),
            own_bucket_bytes=_own_bucket_bytes(ddp),
            overlap=modes.overlap,
            rank_order=modes.order != "rotated",
            check_drift=modes.check_drift,
            made_locally=made_locally,
            micro_batches=modes.micro_batches or 0,
            shard_block=_C.shard_block() if modes.zero_stage >= 2 else 0,
            layout=ddp.sharded_model.trainable[0].plan.layout.buckets if ddp.sharded_model is not None else [],
        )
        group = self._group_for(ddp.process_group)
        super().__init__(list(parameters), list(names), list(sparse), group, options)
        if modes.grad_dtype is not None:
            self.set_gradient_dtype(modes.grad_dtype)
        self.parameters, self.names = list(parameters), list(names)
        self.has_hook = self.steps_in_backward = False
        self.zero_stage = modes.zero_stage
        self.compression: Compression | None = None
        self._ddp = weakref.ref(ddp)
        self._futures: list[torch.futures.Future[Any]] = []
        self.stand_ins = StandIns(self.parameters, self.names, modes.zero_stage)  # for gradients that are in shards
        self.set_after_backward(functools.partial(_end_pass, weakref.ref(self)))
        # None if each rank has its own micro-batches.
        self.leaf_steps = (
            LeafSteps(ddp, self, modes.micro_batches, overlap=modes.overlap, shard=modes.shard_leaves)
            if modes.micro_batches is not None
            else None
        )
        averages_whole = ddp.process_group.size() > 1 and self.zero_stage < 2  # shards hold averaged gradients only
        if averages_whole or self.leaf_steps is not None:
            unaveraged.watch(self)
        if ddp.process_group.size() > 1:
            settings.watch(self)

    @functools.cached_property
    def shard_layout(self) -> Any:
        """Which elements of which gradient each rank of the group owns; from stage 2 on, where buckets never change."""
        return _C.ShardLayout([p.numel() for p in self.parameters], self.layout(), self._ddp().process_group.size())

    @functools.cached_property
    def ids(self) -> set[int]:
        """Of its parameters."""
        return {id(parameter) for parameter in self.parameters}

    def wrapper(self) -> Any | None:
        """The wrapper, as long as it lives."""
        return self._ddp()

    def set_logger(self, logger: Any) -> None:
        """The logger to which torch's class sets a sample rate, through the reducer.

        Held weakly: a cycle would keep a dropped wrapper alive, with its hooks on the parameters of the next wrapper.
        """
        self._logger = weakref.ref(logger)

    def register_comm_hook(self, state: object, hook: Any, always: bool = True) -> None:
        """As torch's; always: see _C.Reducer. RuntimeError if there is a hook already.

        It may make several collectives of a bucket, whose own deadlines come first and name the rank that is late.
        """
        super().register_comm_hook(state, hook, always, 2 * timeout_of(self._ddp().process_group))
        self.has_hook = True

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        self._logger().sample_rate = sample_rate

    def drop_shards(self) -> None:
        """Also removes their stand-ins from .grad."""
        super().drop_shards()
        self.stand_ins.drop()

    def begin_pass(self) -> None:
        """At stages 2 and 3, before a forward pass: its gradients add up with those in shards that were not dropped.

        RuntimeError if some were dropped and, with unused parameters, it could not be known later which.
        """
        used = self.used()
        dropped = self.stand_ins.begin_pass(used)
        if dropped and len(dropped) == sum(used):
            self.drop_shards()
        elif dropped:
            ddp = self._ddp()
            if ddp.find_unused_parameters or ddp.static_graph:
                raise RuntimeError(
                    f"DistributedDataParallel: .grad of {self.names[min(dropped)]} was set to None, and that of other "
                    "parameters was not, which find_unused_parameters and static_graph do not allow from zero_stage=2 "
                    "on, as the next pass may not have one: call optimizer.zero_grad() before it"
                )
            self._clear_pieces(dropped)

    def _clear_pieces(self, numbers: Collection[int]) -> None:
        """Sets these parameters' gradients in shards to -0.0, the identity of IEEE addition."""
        shards = self.shards()
        for parameter, _, length, bucket, offset in self.shard_layout.pieces(self._ddp().process_group.rank()):
            if parameter in numbers and shards[bucket] is not None:
                piece = shards[bucket][offset : offset + length]
                (torch.view_as_real(piece) if piece.is_complex() else piece).fill_(-0.0)

    # The method names of torch's reducer.
    _rebuild_buckets = _C.Reducer.rebuild_buckets
    _push_all_rebuilt_params = _C.Reducer.assume_arrival
    _autograd_hook = _C.Reducer.autograd_hook
    _check_reducer_finalized = _C.Reducer.check_finished
    _remove_autograd_hooks = _C.Reducer.remove_hooks
    _reset_state = _C.Reducer.reset
    _set_static_graph = _C.Reducer.set_static_graph
    _set_mixed_precision_param_dtype = _C.Reducer.set_gradient_dtype

    def _update_process_group(self, group: dist.ProcessGroup) -> None:
        if self.zero_stage >= 2:
            self.drop_shards()
            self.__dict__.pop("shard_layout", None)
        self.set_group(self._group_for(group))
        settings.forget(self)

    def _set_optimizer_in_backward(self) -> None:
        self.set_optimizer_in_backward()
        self.steps_in_backward = True

    def _set_forward_pass_work_handle(self, work: dist.Work, use_static_world_size: bool) -> None:
        """`work`: an all_reduce that counts the ranks that still have inputs."""
        if not use_static_world_size:
            self.set_divisor_work(work)

    def _delay_all_reduce(self) -> None:
        """At the end of a static graph's first backward pass; passes under no_sync do not count as the first."""
        if self.expects_gradients():
            self.delay_all_reduce()
        else:
            self._ddp()._static_graph_delay_allreduce_enqueued = False

    def _install_post_backward_futures(self, futures: Iterable[torch.futures.Future[Any]]) -> None:
        """The end of the next backward pass waits for them."""
        self._futures.extend(futures)

    def _run_allreduce_hook(self, bucket: dist.GradBucket) -> torch.futures.Future[Any]:
        """Called by hooks that wrap the default one: the sum, undivided."""
        return dist.all_reduce(bucket.buffer(), group=self._ddp().process_group, async_op=True).get_future()

    def _set_sparse_metadata(self, global_unique_ids: object) -> None:
        raise NotImplementedError(
            "DistributedDataParallel: _set_sparse_metadata is for an all_reduce of sparse CUDA tensors with known "
            "indices, which ringdp does not have: leave it out, and indices are exchanged with the gradients"
        )


def _end_pass(reference: weakref.ref[Reducer]) -> None:
    reducer = reference()
    while reducer._futures:
        reducer._futures.pop().wait()
    if reducer.zero_stage >= 2:
        reducer.stand_ins.show(reducer.used())
    if reducer.compression is not None:
        reducer.compression.end_pass()
    settings.end_pass(reducer)
