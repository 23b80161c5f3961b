"""Equal dropout masks, and gradients that did not repeat."""

from __future__ import annotations

import pytest
from ringdp.tools.doctor.checks.reproducibility import check_dropout, check_kernels, kernels_not_judged
from synthetic import evidence


def with_states(state, world=4):
    """state(rank, call) is the generator's."""

    def rows(rank):
        calls = [{"step": n // 2, "call": n % 2, "name": "dropout", "shape": [8, 4]} for n in range(6)]
        return {"dropout": [{**row, "state": state(rank, n)} for n, row in enumerate(calls)]}

    return evidence(world, more=rows)


def test_ranks_with_one_seed_are_named():
    (finding,) = check_dropout(with_states(lambda rank, n: f"{n}"))
    assert finding.ranks == (0, 1, 2, 3) and finding.numbers == {"compared": 6}
    assert "torch.manual_seed(seed + rank)" in finding.fix


def test_only_those_that_share_a_seed():
    (finding,) = check_dropout(with_states(lambda rank, n: f"{n} {rank if rank in (1, 3) else 0}"))
    assert finding.ranks == (0, 2)


@pytest.mark.parametrize(
    "run",
    [
        with_states(lambda rank, n: f"{n} {rank}"),
        with_states(lambda rank, n: f"{n} {rank if n else 0}"),  # only the first alike
        evidence(),
    ],
)
def test_seeds_of_their_own_and_no_dropout_are_fine(run):
    assert list(check_dropout(run)) == []


def test_parameters_are_named():
    (finding,) = check_kernels(evidence(more=lambda rank: {"kernels": [{"differing": ["b", "a"] if rank else []}]}))
    assert (finding.ranks, finding.numbers) == ((1,), {"parameters": ["a", "b"]})


def test_repeated_bits_are_fine():
    assert list(check_kernels(evidence())) == [] == list(kernels_not_judged(evidence()))


def test_a_model_that_cannot_be_run_twice_is_said():
    unable = evidence(more=lambda rank: {"kernels": [{"unable": "RuntimeError: checkpoint"}]})
    assert list(check_kernels(unable)) == []
    assert "a second time on the side: RuntimeError: checkpoint" in next(kernels_not_judged(unable))


def test_what_was_not_looked_at_is_said():
    assert "no DistributedDataParallel" in next(kernels_not_judged(evidence(more=lambda rank: {"kernels": []})))
