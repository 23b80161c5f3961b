"""A bucket that is away: what can still be asked of its parameters, who is refused, and what is there afterwards."""

from __future__ import annotations

import pytest
import torch
from ranks import BACKENDS, group_of
from ringdp.zero.away import Away
from ringdp.zero.flat import FlatParameters, bucketed
from zero_rig import same


def rig(backend: str) -> tuple[list[torch.nn.Parameter], FlatParameters, Away]:
    """Of several shapes and strides, and one without elements."""
    source = torch.Generator().manual_seed(5)
    tensors = [torch.randn(70, 60, generator=source), torch.randn(20, 30).t(), torch.empty(0), torch.tensor(2.0)]
    own = [torch.nn.Parameter(t) for t in tensors]
    group = group_of(backend)
    flat = FlatParameters(own, bucketed(own, 1 << 20, group.size()), group)
    return own, flat, Away(flat, 0, {p: f"number {n}" for n, p in enumerate(own)})


def errors_of(*reads) -> list[str]:
    said = []
    for read in reads:
        try:
            read()
            said.append("")
        except RuntimeError as error:
            said.append(str(error))
    return said


def gone_and_back(backend: str) -> tuple[list[str], bool]:
    """On a rank: what readers are told, kept views and writers too; whether everybody then has every rank's part."""
    torch.manual_seed(3)
    own, flat, away = rig(backend)
    facts = [(p.shape, p.stride(), p.dtype, p.requires_grad, p.data_ptr()) for p in own]
    kept, expected = own[1].detach(), [p.detach() * 2 for p in own]
    own[0].grad = torch.ones_like(own[0])
    with torch.no_grad():
        for tensor in flat.tensors:
            tensor.mul_(2)
    away.leave()
    said = errors_of(
        lambda: own[0].sum(), lambda: own[0].data.zero_(), lambda: own[3].item(), lambda: kept.sum(), own[1].data_ptr
    )
    assert [(p.shape, p.stride(), p.dtype, p.requires_grad) for p in own] == [fact[:4] for fact in facts]
    assert own[0].grad is not None and own[2].sum() == 0
    away.arrive()
    assert [p.data_ptr() for p in own] == [fact[4] for fact in facts]
    return said, all(map(same, own, expected)) and same(kept, expected[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bucket_goes_and_comes_back(trio, backend):
    for said, right in trio.run(gone_and_back, backend):
        whose = ["parameter number 0", "parameter number 0", "parameter number 3", "a view that was kept of number 0"]
        for text, who in zip(said, [*whose, "parameter number 1"], strict=True):
            assert who in text and "call optimizer.wait() first" in text
        assert right


def assigned() -> bool:
    """On a rank: a value that was assigned to .data meanwhile is kept."""
    own, flat, away = rig("ringdp")
    away.leave()
    own[0].data = torch.full((70, 60), 7.0)
    away.arrive()
    flat.take_back(0)
    return bool((own[0] == 7).all()) and bool((flat.whole(0)[: own[0].numel()] == 7).all())


def test_what_was_assigned_meanwhile_is_kept(pair):
    assert pair.run(assigned) == [True] * 2


def never_started() -> str:
    """On a rank: the error of a gather that cannot begin; its bucket stays readable."""
    own, flat, away = rig("ringdp")

    def fails(_: torch.Tensor) -> None:
        raise RuntimeError("cannot begin")

    flat.gather_in = fails
    said = errors_of(away.leave)[0]
    assert own[0].sum().isfinite()
    return said


def test_a_gather_that_cannot_begin_takes_nothing_away(pair):
    assert pair.run(never_started) == ["cannot begin"] * 2


def transposed() -> list[str]:
    """On a rank: what is said of strides that were changed meanwhile, as often as somebody waits."""
    own, _, away = rig("ringdp")
    away.leave()
    own[1].data = own[1].data.t()
    said = errors_of(away.arrive, away.arrive)
    own[1].data = own[1].data.t()
    away.arrive()
    assert own[1].sum().isfinite()
    return said


def test_strides_that_were_changed_meanwhile_are_named(pair):
    for said in pair.run(transposed):
        assert all("had shape [30, 20] and strides [1, 30]" in text for text in said)
