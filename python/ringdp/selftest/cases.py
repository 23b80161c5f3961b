"""What is tested: every op with every element type and, where it computes, every reduce operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringdp.selftest import exchanges, moves, reductions
from ringdp.selftest.meaning import COLUMNS, REDUCE_OPS, dtype_named, has_meaning
from ringdp.selftest.seat import Call


@dataclass(frozen=True)
class Op:
    """One row of the table. `least`: ranks it needs."""

    call: Call
    reduces: bool = False
    typed: bool = True
    least: int = 1


OPS: dict[str, Op] = {
    "all_reduce": Op(reductions.all_reduce, reduces=True),
    "all_reduce coalesced": Op(reductions.all_reduce_coalesced, reduces=True),
    "reduce": Op(reductions.reduce_to_each, reduces=True),
    "reduce_scatter": Op(reductions.reduce_scatter, reduces=True),
    "reduce_scatter uneven": Op(reductions.reduce_scatter_uneven, reduces=True),
    "reduce_scatter flat": Op(reductions.reduce_scatter_tensor, reduces=True),
    "reduce_scatter coalesced": Op(reductions.reduce_scatter_coalesced, reduces=True),
    "broadcast": Op(moves.broadcast),
    "all_gather": Op(moves.all_gather),
    "all_gather uneven": Op(moves.all_gather_uneven),
    "all_gather flat": Op(moves.all_gather_into_tensor),
    "all_gather coalesced": Op(moves.all_gather_coalesced),
    "gather": Op(moves.gather),
    "scatter": Op(moves.scatter),
    "all_to_all": Op(exchanges.all_to_all),
    "all_to_all flat": Op(exchanges.all_to_all_single),
    "all_to_all splits": Op(exchanges.all_to_all_splits),
    "send/recv": Op(exchanges.send_recv, least=2),
    "send/recv batch": Op(exchanges.batch_isend_irecv, least=2),
    "barrier": Op(moves.barrier, typed=False),
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
