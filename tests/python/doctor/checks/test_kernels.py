"""ringdp/doctor/checks/kernels.py: gradients that did not repeat."""

from __future__ import annotations

from ringdp.doctor.checks.kernels import check, not_judged
from synthetic import evidence


def test_parameters_are_named():
    (finding,) = check(evidence(more=lambda rank: {"kernels": [{"differing": ["b", "a"] if rank else []}]}))
    assert (finding.ranks, finding.numbers) == ((1,), {"parameters": ["a", "b"]})


def test_repeated_bits_are_fine():
    assert list(check(evidence())) == [] == list(not_judged(evidence()))


def test_a_model_that_cannot_be_run_twice_is_said():
    unable = evidence(more=lambda rank: {"kernels": [{"unable": "RuntimeError: checkpoint"}]})
    assert list(check(unable)) == []
    assert "a second time on the side: RuntimeError: checkpoint" in next(not_judged(unable))


def test_what_was_not_looked_at_is_said():
    assert "no DistributedDataParallel" in next(not_judged(evidence(more=lambda rank: {"kernels": []})))
