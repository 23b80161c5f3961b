"""The extension: the c10d backend, its options, and what the command line prints. Private; use the package's names."""

from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import Store, Work

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
