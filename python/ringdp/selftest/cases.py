"""What is tested: every op with every element type and, where it computes, every reduce operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringdp.selftest import calls
from ringdp.selftest.calls import Call
from ringdp.selftest.oracle import COLUMNS, REDUCE_OPS, dtype_named, has_meaning


@dataclass(frozen=True)
class Op:
    """One row of the table. `least`: ranks it needs."""

    call: Call
    reduces: bool = False
    typed: bool = True
    least: int = 1


OPS: dict[str, Op] = {
    "all_reduce": Op(calls.all_reduce, reduces=True),
    "all_reduce coalesced": Op(calls.all_reduce_coalesced, reduces=True),
    "reduce": Op(calls.reduce_to_each, reduces=True),
    "reduce_scatter": Op(calls.reduce_scatter, reduces=True),
    "reduce_scatter uneven": Op(calls.reduce_scatter_uneven, reduces=True),
    "reduce_scatter flat": Op(calls.reduce_scatter_tensor, reduces=True),
    "reduce_scatter coalesced": Op(calls.reduce_scatter_coalesced, reduces=True),
    "broadcast": Op(calls.broadcast),
    "all_gather": Op(calls.all_gather),
    "all_gather uneven": Op(calls.all_gather_uneven),
    "all_gather flat": Op(calls.all_gather_into_tensor),
    "all_gather coalesced": Op(calls.all_gather_coalesced),
    "gather": Op(calls.gather),
    "scatter": Op(calls.scatter),
    "all_to_all": Op(calls.all_to_all),
    "all_to_all flat": Op(calls.all_to_all_single),
    "all_to_all splits": Op(calls.all_to_all_splits),
    "send/recv": Op(calls.send_recv, least=2),
    "send/recv batch": Op(calls.batch_isend_irecv, least=2),
    "barrier": Op(calls.barrier, typed=False),
}
FAMILIES = tuple(dict.fromkeys(name.split()[0] for name in OPS))


@dataclass(frozen=True)
class Case:
    """One cell's part: an op, an element type's name ("" for barrier), a reduce op ("" where nothing is computed)."""

    op: str
    dtype: str = ""
    reduce: str = ""

    @property
    def meaningful(self) -> bool:
        """Whether it must work; otherwise it must be refused."""
        return not self.reduce or has_meaning(dtype_named(self.dtype), self.reduce)

    def __str__(self) -> str:
        return " ".join(part for part in (self.op, self.dtype, self.reduce) if part)


def cases_of(families: Sequence[str], size: int) -> list[Case]:
    """All cases of these families (all_reduce, gather, ...) that `size` ranks can run, in the order of the table."""
    chosen = []
    for name, op in OPS.items():
        if name.split()[0] in families and size >= op.least:
            dtypes = COLUMNS if op.typed else [""]
            chosen += [Case(name, dtype, reduce) for dtype in dtypes for reduce in (REDUCE_OPS if op.reduces else [""])]
    return chosen
