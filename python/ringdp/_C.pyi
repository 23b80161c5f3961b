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
        """Instead of the constructor, on a rank that cannot join: tells the ranks that wait for it at once."""

    def counters(self) -> dict[str, int]:
        """Collectives, plan steps, rounds, payload bytes on links, bytes read and written in memory; since creation."""

    def enter_allocation_scope(self) -> None:
        """From here on CPU tensors that this thread allocates are in the group's shared memory. Scopes nest."""

    @staticmethod
    def leave_allocation_scope() -> None:
        """Ends this thread's innermost scope."""

    def describe(self) -> str:
        """How bytes reach each peer and why; which plan runs and why."""

    def reduce_div(self, tensor: Tensor, divisor: float, async_op: bool = True) -> Work:
        """Sum over ranks divided once by `divisor`, in place, as one operation: in the group's order, rounded once."""

    def reduce_scatter_div(self, output: Tensor, input: Tensor, divisor: float, async_op: bool = True) -> Work:
        """The same, of which this rank gets its part; `input` has N times the elements of `output`."""

    def gather_whole(self, whole: Tensor, async_op: bool = True) -> Work:
        """All-gathers `whole` in place; this rank's part is there already."""

    def share_memory(self, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """A flat tensor of zeros in memory that the devices of all ranks map; None, on all ranks, where there is none.

        Collective: all ranks ask alike. What `reduce_div` and `gather_whole` are given of it, in the same place on all
        ranks, is not copied.
        """

    def reclaim_memory(self, device: torch.device) -> None:
        """Frees such memory if its tensors are gone on all ranks. Collective."""

    def shares(self, tensor: Tensor) -> bool:
        """Whether a tensor is in such memory."""

    def maps_all_heaps(self) -> bool:
        """Whether every rank maps the memory that all others allocate; equal on all ranks."""

    def heap_view(self, rank: int, offset: int, bytes: int | None = None) -> Tensor:
        """These bytes of a rank's heap, or all from there on. Ranks must agree on who writes when.

        The tensor keeps the mapping.
        """

    def place_in_heap(self, tensor: Tensor) -> int | None:
        """Where a tensor lies in this rank's heap; None elsewhere, and where not all ranks map it."""

    def keep_heap_pages(self) -> None:
        """Other ranks may read this rank's heap when it has left the group, but nothing that it has freed."""

    def heap_room(self) -> int:
        """Bytes that are free in this rank's heap, together; 0 where there is none."""

    def heap_offset(self, tensor: Tensor) -> int:
        """That place, for ranks that may read it when this one has left the group and freed the tensor."""

    def why_no_step(self, device: object) -> str:
        """Why reduce_scatter_step() cannot have tensors of this device; "" where it can. As with any first call on a
        device, ranks meet.
        """

    def reduce_scatter_step(self, gradients: Tensor, divisor: float, sink: ShardSink) -> Work:
        """reduce_scatter_div() and the step of a device_sink() on this rank's part, in one call."""

    def perform_nocolor_split(self, device: object) -> None:
        """Nothing: a rank outside a new group has no part in making it."""

    def shutdown(self) -> None: ...
    def abort(self) -> None: ...

class Reduction:
    """A collective in flight."""

    def finish(self) -> Tensor:
        """Waits and returns the result. Call once, in the order of the starts."""

class Mean:
    """The mean of a flat tensor over a group of any backend: summed in rank order, divided once."""

    def __init__(self, group: ProcessGroup, device: torch.device, rank_order: bool = True) -> None: ...
    def start(self, flat: Tensor, divisor: float) -> Reduction:
        """In place of a contiguous 1-D tensor; collective. `divisor` is equal on all ranks."""

    def start_scatter(self, flat: Tensor, divisor: float) -> Reduction:
        """This rank's part only, as a new tensor; the length of `flat` is a multiple of the number of ranks."""

    @property
    def name(self) -> str:
        """Which kind: "fused", "exchanged" or "summed"; see csrc/reducer/mean.h."""

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
        own_bucket_bytes: int = 0,
        overlap: bool = True,
        rank_order: bool = True,
        shard_block: int = 0,
        check_drift: bool = False,
        made_locally: bool = False,
        micro_batches: int = 0,
        layout: Sequence[Sequence[int]] = ...,
    ) -> None: ...

class Reducer:
    """Averages gradients in buckets while the backward pass runs; see csrc/reducer/reducer.h.

    Any thread. RuntimeErrors name parameters.
    """

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

    def set_leaf_stand_ins(self, stand_ins: Sequence[Tensor]) -> None:
        """By parameter: what .grad holds once a gradient was taken. With micro_batches, as what follows."""

    def set_group_of_leaf_sums(self, group: ProcessGroup | None, along_tree: bool) -> None:
        """In which sums are sent ahead, and at the end if it adds them up (along_tree: it has order="tree")."""

    def release_memory_of_leaf_sums(self) -> None:
        """No such group will follow, which could use it."""

    def expect_leaves(self, leaves: Sequence[Sequence[int]], divisor: float) -> None:
        """Of each rank in the next steps: with its last one a rank sends its sums. [] expects nothing.

        divisor: of the sum of all leaves; 0: unknown.
        """

    def begin_leaf(self, leaf: int) -> None:
        """Before the forward pass of a micro-batch."""

    def share_gradients_of_leaf(self) -> None:
        """After it: gradients that the backward pass makes should lie where sums are sent from."""

    def add_leaf(self) -> None:
        """Takes every .grad as that of the micro-batch that has begun."""

    def end_leaf_of_round(self) -> None:
        """Checks every .grad, as add_leaf() does. With a shard_block; add_leaf_round() follows."""

    def add_leaf_round(self, leaves: Sequence[int]) -> None:
        """Sends shards of the gradients of the micro-batch that each rank has just run (-1: none). Collective.

        Instead of add_leaf(), for every micro-batch of a step; also on ranks without one.
        """

    def abandon_leaf(self) -> None:
        """As if it had not begun."""

    def send_leaves(self) -> bool:
        """Sends what is expected and was not sent; returns whether this rank has sent what it holds."""

    def average_leaves(
        self, leaves: Sequence[Sequence[int]], used: Sequence[bool], divisor: float, as_sent: bool, keep: bool
    ) -> None:
        """Puts the means of the leaves of each rank into .grad of the parameters that are used. Collective.

        keep: the sums of this rank stay until drop_leaves().
        """

    def changed_in_leaves(self) -> bool:
        """Whether a .grad was not the one that its leaf's only backward pass has left."""

    def drop_leaves(self) -> None:
        """Forgets the leaves that were not averaged."""

    def leaves(self) -> list[int]:
        """The micro-batches whose gradients are in the sums of this rank."""

    def used_in_leaves(self) -> list[bool]:
        """By parameter: whether a leaf of this rank had a gradient."""

    def leaf_bytes(self) -> int:
        """Of the sums that are held."""

    def shards(self) -> list[Tensor | None]:
        """By bucket: this rank's part of the means, summed since drop_shards(); flat. With a shard_block."""

    def used(self) -> list[bool]:
        """By parameter: whether any rank had a gradient since drop_shards(). With a shard_block."""

    def drop_shards(self) -> None:
        """What zero_grad() does to .grad."""

    def zero_shards(self) -> None:
        """What zero_grad(set_to_none=False) does to .grad."""

    def set_on_shard(
        self, sinks: Callable[[], Sequence[ShardSink | None]], on_shard: Callable[[int, Tensor], None]
    ) -> None:
        """Steps inside the backward pass instead of keeping shards.

        sinks: called once per pass; returns one sink or None per bucket, which takes its mean as it arrives.
        on_shard: called with (bucket, this rank's part of its mean) when that is complete. Neither may use the reducer.
        """

    def keep_shards(self) -> None:
        """Undoes set_on_shard()."""

    def register_comm_hook(
        self, state: object, hook: Callable[..., Any], always: bool = True, patience: timedelta = timedelta(minutes=10)
    ) -> None:
        """Replaces the mean. RuntimeError if there is a hook already.

        patience: for each of its Futures.

        always: False for one that use_comm_hook() leaves out in most steps: buckets are laid out for those.
        """

    def set_static_graph(self) -> None:
        """Before the first step."""

    def set_agreed(self, digest: int) -> None:
        """A digest of what must be equal on all ranks; 0: of nothing. It travels with the next passes."""

    def differs(self) -> bool:
        """Whether these digests differed in the latest pass; the same on all ranks."""

    def set_gradient_dtype(self, dtype: torch.dtype) -> None:
        """Buckets of this dtype instead of the parameters'."""

    def set_optimizer_in_backward(self) -> None:
        """A hook runs the optimizer: .grad is not written."""

    def use_comm_hook(self, used: bool) -> None:
        """Between passes: whether the hook is called, or buckets are averaged as if there were none."""

    def set_after_backward(self, call: Callable[[], None]) -> None:
        """Called at the end of each synchronised backward pass."""

    def prepare_for_forward(self) -> None:
        """Call before a synchronised forward pass."""

    def rebuild_buckets(self) -> bool:
        """After the first synchronised pass, by order of arrival on rank 0. Returns whether it did. Collective."""

    def prepare_for_backward(self, outputs: Sequence[Tensor]) -> None:
        """Call after a synchronised forward pass; with find_unused, `outputs` are searched for unused parameters."""

    def autograd_hook(self, index: int) -> None:
        """The gradient of this parameter is in .grad."""

    def delay_all_reduce(self) -> None:
        """At the end of the first pass of a static graph."""

    def backward_without_loss(self) -> None:
        """Takes part in a synchronised backward pass with what is in .grad already, or nothing."""

    def check_finished(self) -> None:
        """RuntimeError names the parameters whose gradients did not arrive."""

    def is_static_graph_first_pass(self) -> bool:
        """Whether the first synchronised pass of a static graph is still to come."""

    def stop_shared_allocation(self) -> None:
        """Gradients get ordinary memory again, if no backward pass followed the forward pass."""

    def expects_gradients(self) -> bool:
        """Whether a synchronised forward pass has ended, and its backward pass has not."""

    def keep_gradients(self) -> None:
        """no_sync(): until the next synchronised forward pass, gradients stay on this rank."""

    def passes(self) -> int:
        """Number of synchronised backward passes that have completed."""

    def may_be_unaveraged(self) -> bool:
        """Whether a gradient arrived outside of synchronised passes; its .grad may have been cleared since."""

    def unaveraged(self) -> list[tuple[int, str]]:
        """Parameters with a .grad that was not averaged: "kept" (no_sync), "late" or "foreign" (assigned by hand).

        Empty while a pass runs.
        """

    def shadow_backward(self, divisor: float) -> None:
        """On a joined rank: takes part in the collectives of the others' backward pass."""

    def set_divisor_work(self, work: Work) -> None:
        """The sum of this all_reduce divides the next reduction."""

    def set_divisor(self, divisor: float) -> None:
        """Divides the next reduction."""

    def assume_arrival(self) -> None:
        """On a rank that had no backward pass: gradients count as arrived in the order of the buckets."""

    def reset(self) -> None:
        """Forgets a step that failed; buckets are rebuilt after the next one."""

    def set_group(self, group: ProcessGroup) -> None:
        """Continues with another group, which makes new buckets. Sums of micro-batches stay. Collective."""

    def keep_layout(self) -> None:
        """Buckets stay as they were at construction. Between steps."""

    def remove_hooks(self) -> None:
        """Removes the autograd hooks for good."""

    def buckets(self) -> list[dict[str, Any]]:
        """In launch order: indices, bytes, memory_bytes, dtype, device, sparse, of_leaves, shared."""

    def timeline(self) -> dict[str, Any]:
        """Of the latest step, in nanoseconds: forward, backward, computed, finished, buckets.

        sequence: collectives that the group had begun when it finished; 0 unless timelines are kept.
        """

    def keep_timelines(self, most: int) -> None:
        """From now on those of the latest `most` passes are kept until StepRows takes them; 0: none any more.

        RuntimeError if the group's backend does not count collectives.
        """

    def sample_parameters(self, parameters: list[Tensor]) -> None:
        """From now on each pass compares one part of them on all ranks; with an empty list none any more.

        parameters: contiguous, on the CPU, the same on all ranks. They are kept alive.
        """

    def note_stepped_alone(self) -> None:
        """This rank has stepped with gradients of its own: parameters are not compared any more."""

    def set_sample_stride(self, stride: int) -> None:
        """Only one of so many passes compares a part; a power of two, or 0 for none."""

    def take_sampled(self) -> tuple[bool, bool, int, int, list[tuple[int, list[int], bool, int, int, int, int]]]:
        """Whether buckets carry checksums at all, whether this rank has stepped alone, so that nothing is compared any
        more, how many passes were compared, how many nanoseconds that took, and of the passes since the last
        call in which parts differed: how many passes there had been, the ranks (see odd_ranks) and whether
        there is a majority, the parameter and element where the part begins and where it ends, which is
        included.
        """

    def has_found(self) -> bool:
        """Whether parts have differed since the last take_sampled()."""

    def arrival_order(self) -> list[int]:
        """Indices of parameters by arrival of their gradients in the latest synchronised pass."""

    def unused(self) -> list[int]:
        """Parameters without a path from the latest outputs."""

    def stats(self) -> dict[str, int]:
        """rebuilt, unused_changed (between passes), launched (buckets in the latest pass)."""

    def mean_name(self) -> str:
        """Mean.name of the mean that it uses."""

    def error(self) -> str:
        """The latest error about a wrong training loop, or ""."""

class StepRows:
    """What a reducer's timelines say of its steps. A row is 56 bytes, as tools/watch/figures.py packs a Row."""

    def take(self, reducer: Reducer, stride: int) -> tuple[list[float], bytes]:
        """Of the passes since the last call: the seconds of each, and the rows of those whose number stride divides."""

    @staticmethod
    def sums_of(rows: bytes) -> tuple[int, float, float]:
        """How many rows have communication, and the sums of their exposed seconds and of those in flight.

        ValueError where these are not times of steps.
        """

_Row = tuple[int, int, float, float, float, float, float]
_Step = tuple[dict[int, _Row], dict[int, float]]

class StepJudge:
    """What the steps of all ranks of a group show: a rank that makes the others wait, overlap that was lost."""

    def __init__(self, ranks: int) -> None: ...
    def add(self, rank: int, rows: bytes) -> int:
        """A report, of which what is known already is left out; returns the latest key that was known before.

        ValueError where these are not times of steps.
        """

    def note_delay(self, key: int, rank: int, lost: float) -> None:
        """What the group counts itself: in this step the others waited for this rank alone, so many seconds."""

    def reached(self, reporting: Sequence[int]) -> int:
        """The key of the latest step that all of these ranks have reported."""

    def number_of(self, key: int) -> int:
        """The number of a step that is not judged yet, on the rank that began last; 0 when nobody has reported it."""

    def judge(self, reporting: Sequence[int]) -> list[tuple[int | None, float, list[_Step]]]:
        """What is new in the steps that all of these ranks have reported: the rank that is late, or None where overlap
        was lost; the seconds that were exposed before; of the latest steps, the latest last, rows and waits by rank.
        """

    def forgotten(self) -> int:
        """Steps up to this key were judged, or left out because a rank did not come along."""

def came_late(name: str) -> str:
    """The error message for a gradient that arrived outside of a synchronised pass."""

def make_layout(
    parts: Sequence[tuple[int, int, bool]], order: Sequence[int], limits: Sequence[int], hard_limits: bool = False
) -> list[list[int]]:
    """Divides parameters (bytes, kind, own_bucket), which arrive in `order`, into buckets; csrc/reducer/layout.h."""

class ShardLayout:
    """Which elements of which parameters a rank owns; see csrc/zero/shard_layout.h. Immutable."""

    def __init__(self, lengths: Sequence[int], buckets: Sequence[Sequence[int]], ranks: int) -> None: ...
    @property
    def ranks(self) -> int: ...
    @property
    def buckets(self) -> list[list[int]]:
        """Parameters by bucket."""

    def padded(self, bucket: int) -> int:
        """Elements of a bucket, padding included."""

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
    """A tensor like `like` without memory: reading or writing it raises RuntimeError(message)."""

def take_memory(tensor: Tensor, message: str) -> Tensor:
    """Takes the memory of a tensor's storage, and returns it as a 1-D uint8 tensor."""

def give_memory(tensor: Tensor, memory: Tensor) -> None:
    """Gives memory to a tensor without memory, and leaves `memory` empty. RuntimeError if it is too small."""

def lent(memory: Tensor, words: Tensor, word: int, use: int) -> Tensor:
    """Flat bytes, lent: when the last tensor with this storage is gone, words[word] becomes `use` (int64)."""

def is_returned(words: Tensor, first: int, count: int, use: int) -> bool:
    """Whether `count` words from `first` on are `use`."""

def set_values(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """parameter.data = value for each."""

def next_node() -> int:
    """The number of the autograd node that this thread creates next."""

def watch_backward(
    outputs: Sequence[Tensor], since: int, enter: Callable[[], object], leave: Callable[[], object]
) -> bool:
    """Calls enter() and leave() when a backward pass enters and leaves the nodes of `outputs` from `since` on.

    False if there is no such node. See csrc/zero/backward_watch.h.
    """

def block_squares(piece: Tensor) -> Tensor:
    """The sum of squares of every block of shard_block() elements of a flat tensor, as a float64 tensor."""

class PieceSteps:
    """One prepared optimizer step over pieces; csrc/zero/steps.h."""

    def run(
        self,
        pieces: Sequence[int],
        gradients: Sequence[Tensor],
        journal: StepJournal | None = None,
        numbers: Sequence[int] = (),
    ) -> None:
        """Steps these pieces, given by index, each with its gradient. RuntimeError before anything is written.

        journal: what notes each block; the pieces have these numbers there.
        """

class StepJournal:
    """What a step has done to pieces in memory that other processes map; csrc/zero/step_journal.h."""

    block: int
    """Elements of a block."""
    arrays: int
    """Of which `undo` has the old values of a block."""

    def __init__(self, done: Tensor, in_flight: Tensor, undo: Tensor) -> None:
        """Flat tensors: int64 of a word per piece, int64 of one word, float32 of `arrays` blocks."""

    def undo(self, piece: int, arrays: Sequence[Tensor | None]) -> None:
        """Of a process that is dead: writes the old values of the block that it was stepping, if it was, to `arrays`.

        arrays: copies of the piece and of its state, whole. RuntimeError where they are others than were stepped.
        """

class ShardSink:
    """Consumes this rank's part of a bucket's mean as it arrives; csrc/reducer/reduction.h."""

    on_device: bool
    """Whether a device reduces and steps in one call, so that take() is not called."""

    def take(self, begin: int, means: Tensor) -> None:
        """Takes the means (float32) of the elements from `begin` on; each element once."""

    def wait(self) -> None:
        """Waits for the device's call like a Work, if one has begun."""

def step_sink(pieces: Sequence[tuple[int, PieceSteps, int]]) -> ShardSink:
    """Steps the pieces of one bucket, each given as (offset in the shard, steps, index of the piece in steps)."""

def device_sink(
    parameters: Tensor, pieces: Sequence[tuple[int, Sequence[Tensor], float, tuple[object, ...]]]
) -> ShardSink:
    """Adam on one bucket's pieces, each given as (offset in the shard, state, step number, settings).

    settings: in the order of adam_steps(). parameters: the whole bucket, which all ranks receive; or this rank's shard.
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
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    max_exp_avg_sq: Sequence[Tensor],
    step_numbers: Sequence[float],
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
    """torch.optim.Adam's or AdamW's, bit for bit; with `fastest` ringdp's fastest step, with IEEE square roots."""

def stats() -> dict[str, Any]:
    """Of this process: groups (name, rank, world, submitted, counters, delays_ns by rank, error or None), and
    events_written, events_kept (at most), events_lost. ringdp.stats() is made of it.
    """

def write_trace(folder: str) -> None:
    """Writes FOLDER/rank_<n>, as leaving a group does with RINGDP_TRACE. DistBackendError names the file."""

def name_members(own: int, members: Sequence[int], world: str) -> None:
    """In traces, ranks of groups made from now on are these members of an elastic job, and this process is `own`.

    world: added to the names of these groups.
    """

def note_world(epoch: int, ranks: int, step: int, ns: int) -> None:
    """In traces: a world of an elastic job begins now, after a recovery of `ns`."""

def checksum(tensor: Tensor) -> int:
    """64 bits of a contiguous CPU tensor's bytes; never 0. csrc/kernels/checksum.h says what they tell."""

def covered(intervals: list[tuple[float, float]], since: float) -> float:
    """The total length after `since` that they cover; those that end before they begin are ignored."""

def code_block(code: str) -> int:
    """Elements of a block of int8, fp8, int4 or sign; csrc/kernels/codes.h."""

def code_block_bytes(code: str) -> int:
    """Its bytes."""

def encode_codes(code: str, values: Tensor, residuals: Tensor | None, blocks: int) -> Tensor:
    """Float32 as codes, uint8 [blocks, bytes]; what they leave out of values + residuals becomes the residuals."""

def decode_codes(code: str, encoded: Tensor) -> Tensor:
    """The inverse, float32 [blocks, elements]."""

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

def interfaces() -> list[dict[str, Any]]:
    """Addresses of interfaces that are up: name, address, megabits (0 where the driver does not report it)."""

def route_to(host: str) -> str:
    """This host's source address of packets to `host`, "" when it cannot be resolved or reached. Sends nothing."""

def choose_interface(name: str, route: str) -> tuple[str, str]:
    """Name and address of the interface that TCP between hosts is bound to: the one with this name; "": by route_to()
    the master, "" if unknown. ValueError lists the interfaces when there is none.
    """

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

def even_shares(micro_batches: int, ranks: int) -> list[int]:
    """How many micro-batches each rank runs; the first ones have one more."""

def allot_leaves(shares: Sequence[int]) -> list[list[int]]:
    """By rank: as many micro-batches as its share, in whole subtrees where possible."""

def leaf_roots(micro_batches: int, leaves: Sequence[int]) -> list[tuple[int, int]]:
    """The largest nodes of the tree all of whose leaves are given, as (begin, end)."""

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
