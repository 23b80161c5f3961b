"""The extension: the c10d backend, its options, and what the command line prints. Private; use the package's names."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Store, Work

class Options:
    """Settings of one group as text fields; only those that were set outrank the environment."""

    global_ranks_in_group: list[int]
    group_name: str
    _timeout: timedelta
    def __init__(self, timeout: timedelta = ...) -> None: ...
    def set(self, field: str, value: str) -> None:
        """Sets a field. DistBackendError names what is accepted."""

    def set_tuned(self, field: str, value: str) -> None:
        """The same for a value that was measured: the environment outranks it."""

    def get(self, field: str) -> str:
        """The value in force: set here, else the environment's, else tuned, else the default."""

    def fields(self) -> dict[str, str]:
        """What was set here."""

    def __copy__(self) -> Options: ...
    def __deepcopy__(self, memo: dict[Any, Any]) -> Options: ...

class Backend:
    """A c10d backend: one rank's end of a process group. Making one is collective over the group's ranks."""

    @property
    def options(self) -> Options:
        """The group's own, alive: a timeout set there holds for later calls."""

    def __init__(self, store: Store, rank: int, size: int, name: str, options: Options) -> None: ...
    @staticmethod
    def decline(store: Store, rank: int, size: int, why: str) -> None:
        """Instead of the constructor, on a rank that cannot come: those who wait for it are told at once."""

    def counters(self) -> dict[str, int]:
        """Collectives, plan steps, rounds, payload bytes on links, bytes read and written in memory; since creation."""

    def enter_allocation_scope(self) -> None:
        """From here on CPU tensors that this thread makes lie in the group's shared memory. Scopes nest."""

    @staticmethod
    def leave_allocation_scope() -> None:
        """Ends this thread's innermost scope."""

    def describe(self) -> str:
        """How bytes reach each peer and why; which plan runs and why."""

    def reduce_div(self, tensor: Tensor, divisor: float, async_op: bool = True) -> Work:
        """Sum over ranks divided once by `divisor`, in place, as one operation: rank order, rounded once."""

    def reduce_scatter_div(self, output: Tensor, input: Tensor, divisor: float, async_op: bool = True) -> Work:
        """The same, of which this rank gets its part; `input` has N times the elements of `output`."""

    def gather_whole(self, whole: Tensor, async_op: bool = True) -> Work:
        """Every rank gets each other's part of `whole`, of which its own is there already."""

    def share_memory(self, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """A flat tensor of zeros in memory that the devices of all ranks map; None, on all ranks, where there is none.

        Collective: all ranks ask alike. What `reduce_div` and `gather_whole` are given of it, in the same place on all
        ranks, is not copied.
        """

    def reclaim_memory(self, device: torch.device) -> None:
        """Collective: gives back such memory whose tensors are gone on all ranks."""

    def shares(self, tensor: Tensor) -> bool:
        """Whether it lies in such memory."""

    def why_no_step(self, device: object) -> str:
        """Why reduce_scatter_step() cannot have tensors of this device; "" where it can. As with any first call on a
        device, ranks meet.
        """

    def reduce_scatter_step(self, gradients: Tensor, divisor: float, sink: ShardSink) -> Work:
        """reduce_scatter_div() and the step of a device_sink(), which gets this rank's part, in one call."""

    def perform_nocolor_split(self, device: object) -> None:
        """Nothing: a rank outside a new group has no part in making it."""

    def shutdown(self) -> None: ...
    def abort(self) -> None: ...

class Reduction:
    """A collective in flight."""

    def finish(self) -> Tensor:
        """Waits; the tensor with the result. Once, and in the order of the starts."""

class Mean:
    """How a group averages a flat tensor: in rank order, divided once, whatever its backend."""

    def __init__(self, group: ProcessGroup, device: torch.device, rank_order: bool = True) -> None: ...
    def start(self, flat: Tensor, divisor: float) -> Reduction:
        """In place of a contiguous 1-D tensor; collective. `divisor` is equal on all ranks."""

    def start_scatter(self, flat: Tensor, divisor: float) -> Reduction:
        """This rank's part only, as a tensor of its own; `flat` is a multiple of the ranks long."""

    @property
    def name(self) -> str:
        """fused (by the backend), exchanged (shards, folded here) or summed (the backend's own order)."""

class ReducerOptions:
    """How a reducer works; csrc/reducer/reducer.h explains the fields."""

    def __init__(
        self,
        *,
        bucket_limits: Sequence[int],
        find_unused: bool = False,
        gradient_as_bucket_view: bool = False,
        batched_copy: bool = False,
        skip_unused: bool = False,
        overlap: bool = True,
        rank_order: bool = True,
        shard_block: int = 0,
        check_drift: bool = False,
        alone: bool = False,
        layout: Sequence[Sequence[int]] = ...,
    ) -> None: ...

class Reducer:
    """Averages gradients in buckets while the backward pass goes on. csrc/reducer/reducer.h says how."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        names: Sequence[str],
        sparse: Sequence[bool],
        group: ProcessGroup,
        options: ReducerOptions,
    ) -> None: ...
    def layout(self) -> list[list[int]]:
        """Parameters by bucket."""

    def shards(self) -> list[Tensor | None]:
        """By bucket: this rank's part of the mean, added up since drop_shards(). With a shard_block."""

    def used(self) -> list[bool]:
        """By parameter: whether any rank had a gradient since drop_shards(). With a shard_block."""

    def drop_shards(self) -> None:
        """What zero_grad() does to .grad."""

    def zero_shards(self) -> None:
        """What zero_grad(set_to_none=False) does to .grad."""

    def set_on_shard(
        self, sinks: Callable[[], Sequence[ShardSink | None]], on_shard: Callable[[int, Tensor], None]
    ) -> None:
        """In place of shards. sinks: called once per pass, one per bucket; they take its mean as it comes. on_shard:
        called with (bucket, this rank's part of its mean) when its sink has all of it. Neither may call the reducer.
        """

    def keep_shards(self) -> None:
        """Undoes set_on_shard()."""

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """In place of the mean; once."""

    def set_static_graph(self) -> None:
        """Before the first step."""

    def set_gradient_dtype(self, dtype: torch.dtype) -> None:
        """Buckets of this dtype instead of the parameters'."""

    def set_optimizer_in_backward(self) -> None:
        """Leave .grad alone: a hook has stepped already."""

    def set_after_backward(self, call: Callable[[], None]) -> None:
        """Called at the end of each synchronised backward pass."""

    def prepare_for_forward(self) -> None:
        """A synchronised forward pass begins."""

    def rebuild_buckets(self) -> bool:
        """Once, after the first synchronised pass: by order of arrival on rank 0. Collective; whether it did so."""

    def prepare_for_backward(self, outputs: Sequence[Tensor]) -> None:
        """The forward pass is over; `outputs` are searched for unused parameters where that was asked for."""

    def autograd_hook(self, index: int) -> None:
        """The gradient of this parameter is in .grad."""

    def delay_all_reduce(self) -> None:
        """At the end of the first pass of a static graph."""

    def backward_without_loss(self) -> None:
        """Takes part in a synchronised backward pass with what is in .grad already, or nothing."""

    def check_finished(self) -> None:
        """RuntimeError names the parameters whose gradients did not arrive."""

    def learns(self) -> bool:
        """Whether the first synchronised pass of a static graph is still to come."""

    def stop_sharing(self) -> None:
        """Gradients of a backward pass that never came get ordinary memory again."""

    def expects_gradients(self) -> bool:
        """Between a synchronised forward pass and the end of its backward pass."""

    def keep_gradients(self) -> None:
        """Until the next synchronised forward pass gradients are meant to stay this rank's: no_sync()."""

    def passes(self) -> int:
        """Synchronised backward passes that came to their end."""

    def may_be_unaveraged(self) -> bool:
        """Whether a gradient came outside of them; its .grad may have been zeroed since."""

    def unaveraged(self) -> list[tuple[int, str]]:
        """Parameters with a .grad that no pass has averaged: "kept" (no_sync), "late" or "foreign" (put there by hand).

        Nothing while a pass runs.
        """

    def shadow_backward(self, divisor: float) -> None:
        """What a rank that has joined does while others run a backward pass."""

    def ask_divisor(self, work: Work) -> None:
        """The sum of this all_reduce divides the next reduction."""

    def set_divisor(self, divisor: float) -> None:
        """Divides the next reduction."""

    def assume_arrival(self) -> None:
        """On a rank that had no backward pass: gradients count as arrived in the order of the buckets."""

    def reset(self) -> None:
        """Forgets a step that failed; buckets are rebuilt after the next one."""

    def set_group(self, group: ProcessGroup) -> None:
        """Goes on with another group."""

    def remove_hooks(self) -> None:
        """Autograd no longer calls; for good."""

    def buckets(self) -> list[dict[str, Any]]:
        """In launch order: indices, bytes, memory_bytes, dtype, device, sparse, shared."""

    def timeline(self) -> dict[str, Any]:
        """Of the latest step, in nanoseconds: forward, backward, computed, finished, buckets."""

    def arrival_order(self) -> list[int]:
        """Of the gradients of the latest synchronised pass."""

    def unused(self) -> list[int]:
        """Parameters without a path from the latest outputs."""

    def numbers(self) -> dict[str, int]:
        """rebuilt, unused_changed (between passes), launched (buckets in the latest pass)."""

    def mean_name(self) -> str:
        """Mean.name of what it uses."""

    def error(self) -> str:
        """The latest that it has thrown because the training loop does not fit; or ""."""

def came_late(name: str) -> str:
    """What is said of a gradient that came outside of a synchronised pass."""

def make_layout(
    parts: Sequence[tuple[int, int, bool]], order: Sequence[int], limits: Sequence[int], never_beyond: bool = False
) -> list[list[int]]:
    """Buckets of parameters (bytes, kind, alone), which arrive in `order`; see csrc/reducer/layout.h."""

class ShardLayout:
    """Which elements of which parameters a rank owns: a value. csrc/zero/shard_layout.h says how."""

    def __init__(self, lengths: Sequence[int], buckets: Sequence[Sequence[int]], ranks: int) -> None: ...
    @property
    def ranks(self) -> int: ...
    @property
    def buckets(self) -> list[list[int]]:
        """Parameters by bucket."""

    def padded(self, bucket: int) -> int:
        """Elements of a bucket."""

    def shard(self, bucket: int) -> int:
        """Elements of a rank's part of it."""

    def offsets(self, bucket: int) -> list[int]:
        """Where its parameters begin."""

    def padding(self, rank: int) -> int:
        """Elements of a rank's shards that hold no parameter."""

    def pieces(self, rank: int) -> list[tuple[int, int, int, int, int]]:
        """What a rank owns: parameter, begin in it, length, bucket, offset in the rank's shard."""

def shard_block() -> int:
    """Elements: shards cut parameters at multiples of it only."""

def without_memory(like: Tensor, message: str) -> Tensor:
    """A tensor with everything of `like` but memory: whoever touches it gets RuntimeError(message)."""

def take_memory(tensor: Tensor, message: str) -> Tensor:
    """The memory of its storage, as bytes; it and its views then are without."""

def give_memory(tensor: Tensor, memory: Tensor) -> None:
    """Ends that; `memory` is empty afterwards."""

def set_values(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """parameter.data = value for each."""

def next_node() -> int:
    """The number of the autograd node that this thread makes next."""

def watch_backward(
    outputs: Sequence[Tensor], since: int, enter: Callable[[], object], leave: Callable[[], object]
) -> bool:
    """Tells when backward passes enter and leave the nodes from `since` on behind outputs; csrc/zero/backward_watch.h.

    False where there is no such node.
    """

def block_squares(piece: Tensor) -> Tensor:
    """The sum of squares of every block of a flat tensor, in float64."""

class PieceSteps:
    """One step over pieces, made ready."""

    def run(self, numbers: Sequence[int], gradients: Sequence[Tensor]) -> None:
        """Steps these pieces, each with its gradient."""

class ShardSink:
    """Takes a part of a bucket's mean, stretch by stretch; csrc/reducer/reduction.h."""

    on_device: bool
    """Whether it takes nothing: a device reduces and steps in one call."""

    def take(self, begin: int, means: Tensor) -> None:
        """Elements from `begin` on; each once."""

    def wait(self) -> None:
        """As a Work's, of the device's call once it has begun; else nothing."""

def step_sink(pieces: Sequence[tuple[int, PieceSteps, int]]) -> ShardSink:
    """Steps the pieces of one bucket, each given as (offset in the shard, steps, number of the piece there)."""

def device_sink(
    parameters: Tensor, pieces: Sequence[tuple[int, Sequence[Tensor], float, tuple[object, ...]]]
) -> ShardSink:
    """Adam on one bucket's pieces, each given as (offset in the shard, state, number of this step, settings).

    settings: as adam_steps() has them, in that order. parameters: of the whole bucket, which then all ranks get; or of
    this rank's shard.
    """

def sgd_steps(
    parameters: Sequence[Tensor],
    buffers: Sequence[Tensor],
    first: Sequence[bool],
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    fastest: bool,
) -> PieceSteps:
    """torch.optim.SGD's single-tensor step of flat float32 tensors, bit for bit."""

def adam_steps(
    parameters: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    largest: Sequence[Tensor],
    numbers: Sequence[float],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    amsgrad: bool,
    maximize: bool,
    fastest: bool,
) -> PieceSteps:
    """torch.optim.Adam's and AdamW's, likewise; `fastest`: ringdp's own, with IEEE square roots."""

def stats() -> dict[str, Any]:
    """Of this process: groups (name, rank, world, submitted, counters, delays_ns by rank, error or None), and
    events_written, events_kept (at most), events_lost. ringdp.stats() is made of it.
    """

def write_trace(folder: str) -> None:
    """Writes FOLDER/rank_<n>, as leaving a group does with RINGDP_TRACE. DistBackendError names the file."""

def checksum(tensor: Tensor) -> int:
    """64 bits of a contiguous CPU tensor's bytes; never 0. csrc/kernels/checksum.h says what they tell."""

def odd_ranks(by_rank: Sequence[int]) -> list[int]:
    """Ranks whose value is not that of more than half; all when no value is. 0 takes no part. Empty: all agree."""

def leave_all() -> None:
    """leave_groups() when the process ends: no other thread comes back to Python from ringdp any more."""

def leave_groups() -> None:
    """Every group of this process that is still there says goodbye to its peers, with last_words.current()."""

def serve_device(type: str) -> None:
    """Tensors of this type, too, are carried: they lie on the devices of the library that RINGDP_GPU_LIBRARY names."""

def setting_table() -> list[dict[str, str]]:
    """Rows: field, variable, value, source, default, accepts, help."""

def threshold_fields() -> list[str]:
    """Settings that only choose between plans with the same bits."""

def check_environment() -> None:
    """ValueError on a bad RINGDP_* value, naming what is accepted."""

def instruction_set() -> str:
    """What the arithmetic runs on: avx512, avx2, neon or scalar."""

def gpu_report() -> dict[str, Any]:
    """The CUDA part: `library` (its path, None where it is not built), `why_none` (None, or why there is no device),
    `devices`, `kernels` (their registers on the current device, as text), `nccl` (version, 0 where there is none).
    """

def device_plan(
    collective: str,
    algorithm: str = "direct",
    dtype: str = "float32",
    op: str = "SUM",
    rank: int = 0,
    world: int = 2,
    count: int = 1024,
    root: int = 0,
    segment_bytes: int = ...,
) -> dict[str, Any]:
    """One rank's plan over memory of devices. `text`; `packed`: its `steps` steps as device/kernel/work.h holds them;
    `element`, `reduce`: as rd_gpu_run takes them; bytes of each rank's `input_bytes`, `output_bytes`, `stage_bytes`,
    of one writer's `pushed_bytes` for one parity; what this rank moves, `read_bytes` and `written_bytes`.
    `count`: elements of the tensor, or of every rank's part. DistBackendError names what is refused.
    """

def device_adam_scalars(
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool, number: float
) -> bytes:
    """The `scalars` of device/kernel/work.h for step `number`, from 1."""

def device_sizes() -> dict[str, int]:
    """Bytes of what travels to kernels: Work, AdamWork, AdamScalars, Epoch, Expired, Flags, Step."""

def device_blocks(multiprocessors: int, ranks: int) -> int:
    """Blocks of each rank's kernel where so many ranks' run side by side on a device."""

def built_for() -> dict[str, str]:
    """torch, python and compiler of this build."""

def ring_walkthrough(inputs: list[list[float]], order: str = "rotated") -> dict[str, Any]:
    """Runs a ring all-reduce in this thread: events, results, bytes_sent, rounds."""

def plan_text(
    collective: str,
    algorithm: str,
    order: str = "rank",
    rank: int = 0,
    world: int = 2,
    count: int = 1024,
    root: int = 0,
    segment_bytes: int = ...,
    hosts: list[int] = ...,
    wire: str = "fp32",
    one_shot_bytes: int = ...,
    in_heaps: bool = False,
) -> str:
    """The plan of one rank for `count` float32, as a table.

    hosts: first rank of each, for the hierarchy. one_shot_bytes: the arena sums up to here in one shot. in_heaps: the
    tensors lie in shared memory.
    """

def plan_json(
    collective: str,
    algorithm: str,
    order: str = "rank",
    rank: int = 0,
    world: int = 2,
    count: int = 1024,
    root: int = 0,
    segment_bytes: int = ...,
    hosts: list[int] = ...,
    wire: str = "fp32",
    one_shot_bytes: int = ...,
    in_heaps: bool = False,
) -> str:
    """The same as JSON."""
