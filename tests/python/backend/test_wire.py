"""Wire types through torch.distributed: bits against a serial oracle in torch, bytes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import ringdp
import torch
import torch.distributed as dist
from oracle import FLOATS, bytes_of, every_rank, fold, same_bits, values
from ranks import HERE, on_ranks
from torch import Tensor

WIRES = ["bf16", "fp16", "fp8", "int8"]
BLOCK = 256
LARGEST = {"fp8": 448.0, "int8": 127.0}
COUNTS = [0, 1, 255, 1001, 4099]


def code(scaled: Tensor, wire: str) -> Tensor:
    """The nearest code; int8 has no negative zero."""
    return scaled.round() + 0.0 if wire == "int8" else scaled.to(torch.float8_e4m3fn).to(torch.float32)


def through_wire(tensor: Tensor, wire: str) -> Tensor:
    """What a tensor decodes to: float64 as float64, anything else as float32."""
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    x = tensor.to(torch.float32)
    if wire in ("bf16", "fp16"):
        return x.to(torch.bfloat16 if wire == "bf16" else torch.float16).to(wide)
    blocks = torch.nn.functional.pad(x, (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True) / LARGEST[wire] if blocks.numel() else blocks
    # The next power of two, for blocks that lose nothing by it.
    powers = 2.0 ** scales.clamp(min=2.0**-100).log2().ceil()
    exact = (code(blocks / powers, wire) * powers == blocks).all(1, keepdim=True) if blocks.numel() else scales
    scales = torch.where(exact.bool(), powers, scales)
    codes = (blocks / scales.clamp(min=2.0**-100)).nan_to_num(0.0)
    return (code(codes, wire) * scales).view(-1)[: x.numel()].to(wide)


def is_wider(dtype: torch.dtype, wire: str) -> bool:
    return dtype.itemsize > (1 if wire in LARGEST else 2)


def summed(inputs: list[Tensor], wire: str, op: str) -> Tensor:
    """The owner's sum, before it is quantised and rounded."""
    if not is_wider(inputs[0].dtype, wire):
        return fold(inputs, op)
    return fold([through_wire(tensor, wire) for tensor in inputs], op)


def reduced(inputs: list[Tensor], wire: str, op: str) -> Tensor:
    """What an all_reduce gives."""
    total = summed(inputs, wire, op)
    return (through_wire(total, wire) if is_wider(inputs[0].dtype, wire) else total).to(inputs[0].dtype)


def on_groups(wire: str, call: Callable[[object, int, int], list[str]]) -> list[str]:
    """call(group, ranks, own rank) on groups of 2, 3 and 4 ranks that have this wire type."""
    wrong = []
    for ranks in (2, 3, 4):
        group = dist.new_group(range(ranks), pg_options=ringdp.Options(wire=wire))
        if HERE.rank < ranks:
            wrong += [f"{ranks} ranks: {what}" for what in call(group, ranks, HERE.rank)]
            dist.destroy_process_group(group)
    return wrong


def all_reduces(wire: str) -> list[str]:
    """On a rank: what differs from the oracle. Equal to it on all ranks means equal on all ranks."""

    def call(group: object, ranks: int, rank: int) -> list[str]:
        wrong = []
        for dtype in FLOATS:
            for count in COUNTS:
                inputs = every_rank("all_reduce", count, dtype, ranks)
                for op in ("SUM", "AVG"):
                    dist.all_reduce(mine := inputs[rank].clone(), op=getattr(dist.ReduceOp, op), group=group)
                    if not same_bits(mine, reduced(inputs, wire, op)):
                        wrong.append(f"{op} {dtype} x {count}")
        return wrong

    return on_groups(wire, call)


def reduce_scatters(wire: str) -> list[str]:
    """On a rank: contributions are quantised, the result is not."""

    def call(group: object, ranks: int, rank: int) -> list[str]:
        wrong = []
        for dtype in FLOATS:
            for count in COUNTS:
                inputs = every_rank("scatter", count * ranks, dtype, ranks)
                parts = [tensor[rank * count : (rank + 1) * count] for tensor in inputs]
                dist.reduce_scatter_tensor(mine := torch.empty(count, dtype=dtype), inputs[rank], group=group)
                if not same_bits(mine, summed(parts, wire, "SUM").to(dtype)):
                    wrong.append(f"{dtype} x {count}")
        return wrong

    return on_groups(wire, call)


def other_forms(wire: str) -> list[str]:
    """On a rank: coalesced, divided by any number, premultiplied."""

    def call(group: object, ranks: int, rank: int) -> list[str]:
        wrong = []
        inputs = every_rank("forms", 3000, torch.float32, ranks)
        backend = group._get_backend(torch.device("cpu"))
        pieces = list(inputs[rank].clone().split([999, 1, 2000]))
        dist.all_reduce_coalesced(pieces, group=group)
        if not same_bits(torch.cat(pieces), reduced(inputs, wire, "SUM")):
            wrong.append("coalesced")
        backend.reduce_div(mine := inputs[rank].clone(), 7.0).wait()
        if not same_bits(mine, through_wire(summed(inputs, wire, "SUM") / 7.0, wire)):
            wrong.append("reduce_div")
        wholes = every_rank("div", 750 * ranks, torch.float32, ranks)
        parts = [tensor[rank * 750 : (rank + 1) * 750] for tensor in wholes]
        backend.reduce_scatter_div(part := torch.empty(750), wholes[rank], 3.0).wait()
        if not same_bits(part, summed(parts, wire, "SUM") / 3.0):
            wrong.append("reduce_scatter_div")
        dist.all_reduce(mine := inputs[rank].clone(), op=dist._make_nccl_premul_sum(0.3), group=group)
        if not same_bits(mine, reduced([tensor * 0.3 for tensor in inputs], wire, "SUM")):
            wrong.append("premultiplied")
        return wrong

    return on_groups(wire, call)


def everything_else(wire: str) -> list[str]:
    """On a rank: what is no sum of wider floats keeps its bits, and its bytes on the wire."""

    def call(group: object, ranks: int, rank: int) -> list[str]:
        wrong = []
        for dtype, op in ((torch.float32, "MAX"), (torch.int64, "SUM"), (torch.float64, "MIN")):
            inputs = every_rank(op, 1001, dtype, ranks)
            dist.all_reduce(mine := inputs[rank].clone(), op=getattr(dist.ReduceOp, op), group=group)
            if not same_bits(mine, fold(inputs, op)):
                wrong.append(f"{op} {dtype}")
        dist.broadcast(mine := values("b", rank, 1001, torch.float32), 0, group=group)
        if not same_bits(mine, values("b", 0, 1001, torch.float32)):
            wrong.append("broadcast")
        return wrong

    return on_groups(wire, call)


def strange_values(wire: str) -> tuple[bool, bool, bytes]:
    """On a rank: one rank contributes an infinity; whether the element is, and whether its block is all not finite."""
    group = dist.new_group(range(HERE.size), pg_options=ringdp.Options(wire=wire))
    tensor = torch.ones(1000)
    if HERE.rank == 1:
        tensor[300] = float("inf")
    dist.all_reduce(tensor, group=group)
    finite = tensor.isfinite()
    dist.destroy_process_group(group)
    return not bool(finite[300]), not bool(finite[256:512].any()), bytes_of(tensor)


def sent(wire: str, count: int) -> tuple[int, str]:
    """On a rank: payload bytes of one all_reduce, and the plan with its reason."""
    group = dist.new_group(range(HERE.size), pg_options=ringdp.Options(wire=wire))
    backend = group._get_backend(torch.device("cpu"))
    before = backend.counters()["wire_bytes_sent"]
    dist.all_reduce(torch.ones(count), group=group)
    moved, said = backend.counters()["wire_bytes_sent"] - before, backend.describe().splitlines()[-1]
    dist.destroy_process_group(group)
    return moved, said


def refused(**options: object) -> None:
    """On a rank: makes a group with options that cannot be."""
    dist.new_group(range(HERE.size), pg_options=ringdp.Options(**options))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("calls", [all_reduces, reduce_scatters, other_forms, everything_else])
def test_bits_equal_the_oracle(world_of, calls, wire):
    assert world_of(4, transport="tcp").run(calls, wire) == [[]] * 4


@pytest.mark.parametrize("wire", WIRES)
def test_nothing_becomes_finite_silently(world_of, wire):
    outcomes = world_of(4, transport="tcp").run(strange_values, wire)
    assert len({raw for _, _, raw in outcomes}) == 1
    for element, block, _ in outcomes:
        assert element and block == (wire in LARGEST)


@pytest.mark.parametrize("wire", ["fp32", *WIRES])
def test_counters_show_the_wire_types_bytes(world_of, wire):
    count = 4 * BLOCK * 10
    scales = 4 * (count // BLOCK) if wire in LARGEST else 0
    encoded = count * {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}[wire] + scales
    for moved, said in world_of(4, transport="tcp").run(sent, wire, count):
        assert moved == 2 * 3 * encoded // 4
        assert "plan: direct" in said and (wire == "fp32" or f"wire={wire}" in said)


def test_shared_memory_has_no_wire_and_says_so(world_of):
    for moved, said in world_of(3, transport="shm").run(sent, "int8", 1000):
        assert moved == 0
        assert "plan: arena" in said and "wire=int8 has no effect" in said


@on_ranks(2, error=("wire=bf16", "wire=int8"), transport="tcp")
def test_ranks_that_disagree_are_named() -> None:
    """The last one wants another wire type."""
    refused(wire="bf16" if HERE.rank < HERE.size - 1 else "int8")


@on_ranks(2, error="InvalidArgument: algorithm=ring cannot send wire=int8", transport="tcp")
def test_a_forced_ring_is_refused_by_name() -> None:
    refused(wire="int8", algorithm="ring")
