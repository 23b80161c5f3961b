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

    @property
    def name(self) -> str:
        """fused (by the backend), exchanged (shards, folded here) or summed (the backend's own order)."""

class Reducer:
    """Averages gradients in buckets while the backward pass goes on. csrc/reducer/reducer.h says how."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        names: Sequence[str],
        sparse: Sequence[bool],
        group: ProcessGroup,
        *,
        bucket_limits: Sequence[int],
        find_unused: bool = False,
        gradient_as_bucket_view: bool = False,
        batched_copy: bool = False,
        skip_unused: bool = False,
        overlap: bool = True,
        rank_order: bool = True,
    ) -> None: ...
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

def make_layout(parts: Sequence[tuple[int, int, bool]], order: Sequence[int], limits: Sequence[int]) -> list[list[int]]:
    """Buckets of parameters (bytes, kind, alone), which arrive in `order`; see csrc/reducer/layout.h."""

def leave_all() -> None:
    """Every group of this process that is still there says goodbye to its peers."""

def setting_table() -> list[dict[str, str]]:
    """Rows: field, variable, value, source, default, accepts, help."""

def threshold_fields() -> list[str]:
    """Settings that only choose between plans with the same bits."""

def check_environment() -> None:
    """ValueError on a bad RINGDP_* value, naming what is accepted."""

def instruction_set() -> str:
    """What the arithmetic runs on: avx512, avx2, neon or scalar."""

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
) -> str:
    """The plan of one rank for `count` float32, as a table. `hosts`: first rank of each, for the hierarchy."""

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
) -> str:
    """The same as JSON."""
