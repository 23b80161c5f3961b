"""Cells: counts, bus factors, what must be where, sizes in words; and the bytes of the limits."""

from __future__ import annotations

import pytest
from race.cell import OPS, Cell, parse_size, seed_of, size_name
from race.limits import shared_bytes, sweep_bytes
from race.probe import probe_bytes


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("op", OPS)
def test_counts_are_whole_parts_and_at_least_one_each(op, ranks):
    for size in (1, 4096, 10_000):
        cell = Cell(op, "float32", ranks, size)
        assert cell.count == cell.part * ranks
        assert cell.part >= 1
        assert cell.nbytes <= max(size, 4 * ranks)
        assert max(cell.input_count, cell.output_count) == cell.count


@pytest.mark.parametrize("ranks", [2, 5])
def test_expected_covers_every_output_once(ranks):
    for op in OPS:
        cell = Cell(op, "float32", ranks, 4096)
        for rank in range(ranks):
            pieces = cell.expected(rank, root=1)
            covered = sum(piece.count for piece in pieces)
            nothing = op == "reduce" and rank != 1
            assert covered == (0 if nothing else cell.output_count or cell.count)
            for piece in pieces:
                assert set(piece.ranks) <= set(range(ranks))


def test_bus_factors_are_those_of_nccl_tests():
    factors = {op: Cell(op, "float32", 4, 64).bus_factor for op in OPS}
    rest = {"reduce_scatter": 0.75, "all_gather": 0.75, "all_to_all": 0.75}
    assert factors == {"all_reduce": 1.5, "broadcast": 1.0, "reduce": 1.0, **rest}


def test_seeds_differ_by_cell_turn_and_rank():
    cells = [Cell(op, dtype, 2, size) for op in OPS for dtype in ("float32", "bfloat16") for size in (64, 128)]
    seeds = {seed_of(cell, turn, rank) for cell in cells for turn in (-2, 0, 1) for rank in (0, 1)}
    assert len(seeds) == len(cells) * 6


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("4KiB", 4096), ("1M", 1 << 20), ("2 gib", 2 << 30)])
def test_sizes_in_words(text, size):
    assert parse_size(text) == size
    assert parse_size(size_name(size)) == size


@pytest.mark.parametrize("text", ["", "0", "4x", "-1", "1.5MiB"])
def test_no_size(text):
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)


def test_sweep_reads_and_writes_what_a_perfect_collective_would():
    read_write = {op: [sweep_bytes(Cell(op, "bfloat16", 4, 4096), rank, root=1) for rank in (0, 1)] for op in OPS}
    for op in ("all_reduce", "all_gather", "all_to_all"):
        assert read_write[op] == [(4096, 4096)] * 2
    for op in ("reduce_scatter", "reduce"):
        assert read_write[op] == [(4096, 1024)] * 2
    assert read_write["broadcast"] == [(4096, 4096), (0, 0)]


def test_limits_need_memory_for_the_largest_shuffle_or_source():
    assert shared_bytes([Cell("all_reduce", "float32", 4, 64), Cell("all_gather", "float32", 4, 512)]) == 512
    assert shared_bytes([Cell("all_reduce", "float32", 4, 256), Cell("all_gather", "float32", 4, 512)]) == 1024


def test_probe_moves_what_must_enter_a_host():
    assert probe_bytes(Cell("all_reduce", "float32", 8, 4096), hosts=4) == 2 * 3072
    assert probe_bytes(Cell("all_gather", "float32", 8, 4096), hosts=4) == 3072
