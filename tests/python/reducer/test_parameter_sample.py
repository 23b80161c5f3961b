"""A part of the parameters compared in each pass: each in its turn, on ranks that are not at the same one, or not."""

from __future__ import annotations

import pytest
import torch
from ranks import HERE
from rig import backward, reducer_of

PARTS = 31
SHAPES = [(700, 500), (3,), (0, 4), (900, 900), (5, 1)]  # 1.2 M elements, so that there are PARTS parts


def replicas(shapes=SHAPES, dtypes=(torch.float32, torch.float64, torch.float32, torch.bfloat16, torch.float32)):
    return [torch.zeros(s, dtype=d, requires_grad=True) for s, d in zip(shapes, dtypes, strict=False)]


class Run:
    """A reducer whose parameters change only by flips."""

    def __init__(self, parameters, sampled=True, **options):
        self.parameters = parameters
        self.reducer = reducer_of(parameters, **options)
        self.found, self.compared = [], 0
        if sampled:
            self.begin()

    def begin(self):
        self.reducer.sample_parameters([p for p in self.parameters if p.numel()])

    def passes(self, count=1):
        for _ in range(count):
            backward(self.reducer, self.parameters, [torch.ones_like(p) for p in self.parameters])
        self.carried, self.alone, self.compared, self.ns, found = self.reducer.take_sampled()
        self.found += found

    def flip(self, index, element):
        self.parameters[index].detach().view(-1)[element] += 1


def every_part():
    """By what was flipped on rank 1: the elements between which it was found, and after how many passes."""
    run, seen = Run(replicas()), []
    run.passes(2)
    # Parameters without elements are left out, so p3 is the third of those that are compared.
    for index, element, number in [(0, 0, 0), (0, 349_999, 0), (1, 1, 1), (3, 0, 2), (3, 809_999, 2), (4, 4, 3)]:
        if HERE.rank == 1:
            run.flip(index, element)
        before = run.compared
        while not run.found and run.compared < before + 2 * PARTS:
            run.passes()
        ((_, ranks, majority, first, begin, last, end),) = run.found
        inside = (first, begin) <= (number, element) <= (last, end)
        seen.append((ranks, majority, inside, run.compared - before <= PARTS))
        if HERE.rank == 1:
            with torch.no_grad():
                run.parameters[index].zero_()
        run.found = []
    run.passes(2 * PARTS)
    return seen, run.found, run.compared == run.reducer.passes(), run.ns > 0


def test_what_differs_is_found_within_as_many_passes_as_there_are_parts(trio):
    for seen, healthy, all_compared, costs in trio.run(every_part):
        assert seen == [([1], True, True, True)] * 6 and healthy == [] and all_compared and costs


def strides(mine):
    run = Run(replicas())
    run.reducer.set_sample_stride(mine[HERE.rank])
    if HERE.rank == 1:
        run.flip(0, 7)
    run.passes(PARTS * max(mine))
    return len(run.found), run.compared, {majority for _, _, majority, *_ in run.found}


@pytest.mark.parametrize(("mine", "compared"), [((1, 1), 31), ((1, 4), 31), ((8, 2), 31), ((16, 16), 31), ((0, 1), 0)])
def test_ranks_that_take_fewer_turns_compare_in_those(pair, mine, compared):
    for found, times, majority in pair.run(strides, mine):
        assert times == compared and found == (compared > 0) and majority <= {False}


def begun_later():
    """Rank 0 begins 3 passes before rank 1; then rank 1 stops and begins again."""
    run = Run(replicas(), sampled=HERE.rank == 0)
    run.passes(3)
    alone = run.compared
    if HERE.rank == 1:
        run.begin()
        run.flip(3, 100)
    run.passes(PARTS + 1)  # in one of them they find that they are apart
    found, compared = len(run.found), run.compared
    if HERE.rank == 1:
        run.reducer.sample_parameters([])
    run.passes(5)
    stopped = run.compared - compared
    if HERE.rank == 1:
        run.begin()
    run.found = []
    run.passes(PARTS + 1)
    return alone, found, len(run.found), stopped if HERE.rank == 0 else 0


def test_ranks_that_begin_at_different_passes_come_together(pair):
    assert pair.run(begun_later) == [(0, 1, 1, 0), (0, 1, 1, 0)]


def joined(passes, shapes):
    """Rank 1 is out of inputs for some passes, and comes back."""
    run = Run(replicas(shapes))
    run.passes(2)
    for _ in range(passes):
        if HERE.rank == 1:
            run.reducer.shadow_backward(2.0)
        else:
            backward(run.reducer, run.parameters, [torch.ones_like(p) for p in run.parameters])
    run.passes()
    healthy = len(run.found)
    before = run.compared
    if HERE.rank == 1:
        run.flip(0, 0)
    while not run.found and run.compared < before + 2 * PARTS:
        run.passes()
    return healthy, len(run.found)


@pytest.mark.parametrize("shapes", [SHAPES, [(4 * 16384,)]])
@pytest.mark.parametrize("passes", [4, 31, 248])
def test_a_rank_that_was_without_inputs_is_compared_again(pair, passes, shapes):
    assert pair.run(joined, passes, shapes) == [(0, 1), (0, 1)]


def out_of_reach(kind):
    """Whether buckets carry checksums, and how many passes were compared."""
    options = {"drift": {"check_drift": True}, "sparse": {"sparse": [True]}, "gloo": {"backend": "gloo"}}.get(kind, {})
    run = Run(replicas([(40, 2)]), **options)
    if kind == "hook":
        run.reducer.register_comm_hook(None, lambda state, bucket: bucket.get_future_of_buffer(state))
        return run.reducer.take_sampled()[:3]
    if kind == "sparse":
        return run.reducer.take_sampled()[:3]
    run.passes(3)
    return run.carried, run.alone, run.compared


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("as it is", (True, False, 3)),
        ("drift", (True, False, 0)),  # which compares everything
        ("sparse", (False, False, 0)),
        ("gloo", (False, False, 0)),
        ("hook", (False, False, 0)),
    ],
)
def test_what_carries_no_checksum_says_so(pair, kind, told):
    assert pair.run(out_of_reach, kind) == [told, told]


def other_memory():
    """A parameter with memory of another size: parts that it is in are compared no more, and the others are."""
    run = Run(replicas())
    run.parameters[3].data = torch.full((900, 1800), float(HERE.rank), dtype=torch.bfloat16)[:, ::2]
    run.passes(PARTS)
    return run.compared, run.found


def test_a_parameter_that_got_other_memory_is_left_out(pair):
    for compared, found in pair.run(other_memory):
        assert 0 < compared < PARTS and found == []


def frozen_and_gone():
    """A parameter without gradients whose memory is freed: the parts without it are still compared."""
    run = Run(replicas(), sampled=False)
    frozen = torch.full((400_000,), float(HERE.rank))
    run.reducer.sample_parameters([frozen, *(p for p in run.parameters if p.numel())])
    frozen.untyped_storage().resize_(0)
    run.passes(PARTS)
    return 0 < run.compared < PARTS and run.found == []


def test_memory_that_is_gone_is_not_read(pair):
    assert pair.run(frozen_and_gone) == [True, True]


def stepped_alone():
    run = Run(replicas())
    run.passes(2)
    run.reducer.prepare_for_forward()
    run.reducer.keep_gradients()
    loss = run.parameters[0].sum()
    loss.backward()
    run.passes()
    accumulated = run.alone
    run.reducer.prepare_for_forward()
    run.reducer.keep_gradients()
    run.parameters[0].sum().backward()
    with torch.no_grad():
        run.parameters[0] -= 1.0 + HERE.rank
    run.passes(2 * PARTS)
    return accumulated, run.alone, run.compared, run.found


def test_steps_with_gradients_of_its_own_end_it_and_accumulation_does_not(pair):
    assert pair.run(stepped_alone) == [(False, True, 3, [])] * 2


@pytest.mark.parametrize(("elements", "parts"), [(1, 1), (16384, 1), (2 * 16384, 1), (4 * 16384, 3), (31 * 16384, 31)])
def test_small_models_have_fewer_parts(pair, elements, parts):
    assert pair.run(passes_until_found, elements) == [parts, parts]


def passes_until_found(elements):
    """Of a difference in the last element: its turn comes last."""
    run = Run(replicas([(elements,)]))
    if HERE.rank == 1:
        run.flip(0, elements - 1)
    while not run.found and run.compared < 2 * PARTS:
        run.passes()
    return run.compared
