"""torch.compile over functional collectives."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
import torch.distributed as dist
from groups import WIDTH, batch, default_group
from ranks import HERE

functional = pytest.importorskip("torch.distributed._functional_collectives")


def exchange(tensor: torch.Tensor) -> torch.Tensor:
    """All three collectives with arithmetic between them."""
    group = dist.group.WORLD
    total = functional.all_reduce(tensor * 2, "sum", group)
    rows = functional.all_gather_tensor(total + tensor, 0, group)
    return functional.reduce_scatter_tensor(rows.relu(), "sum", 0, group) - 1


def compiled(backend: str, compiler: str, cache: str) -> list[list[float]]:
    """On a rank: what the function gives as written, and compiled as one graph."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    with default_group(backend):
        given = batch(HERE.rank, 0)
        results = [exchange(given), torch.compile(exchange, fullgraph=True, backend=compiler)(given)]
        return [result.flatten().tolist() for result in results]


def test_a_graph_communicates_as_written(assert_same, tmp_path):
    for as_written, in_a_graph in assert_same(2, compiled, "aot_eager", str(tmp_path)):
        assert len(as_written) == 4 * WIDTH
        assert in_a_graph == as_written


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("g++") and not shutil.which("clang++"), reason="no C++ compiler")
def test_so_does_compiled_code(values_over, tmp_path):
    for as_written, in_compiled_code in values_over("ringdp", 2, compiled, "inductor", str(tmp_path)):
        assert in_compiled_code == as_written
