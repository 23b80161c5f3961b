"""Parameters in flat buckets, and the layout that cuts buckets into shards."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of, on_ranks
from ringdp import _native
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.flat import FlatParameters, bucketed, in_memory_order, order_of, shaped
from ringdp.zero.optimizer import ZeroOptimizer
from zero_rig import same, wrapped


def parameters() -> list[torch.nn.Parameter]:
    """Of several shapes, strides and types; one without elements."""
    source = torch.Generator().manual_seed(5)
    image = torch.randn(8, 3, 5, 5, generator=source).to(memory_format=torch.channels_last)
    tensors = [torch.randn(70, 60, generator=source), image, torch.randn(3), torch.empty(0), torch.tensor(2.0)]
    tensors += [torch.randn(3000, generator=source).bfloat16(), torch.randn(20, 30).t()]
    return [torch.nn.Parameter(t) for t in tensors]


@on_ranks(3, (True, True, True))
def test_parameters_move_and_come_back_whole() -> tuple[bool, bool, bool]:
    """Values and strides stay; pieces are views of them; after a change of parts everybody has all."""
    torch.manual_seed(1)
    own = parameters()
    before = [p.detach().clone(memory_format=torch.preserve_format) for p in own]
    flat = FlatParameters(own, bucketed(own, 20_000, HERE.size), dist.group.WORLD)
    stayed = all(same(p, b) and p.stride() == b.stride() for p, b in zip(own, before, strict=True))
    views = all(
        same(tensor, in_memory_order(own[piece.parameter].detach(), own[piece.parameter])[piece.part])
        for piece, tensor in zip(flat.pieces, flat.tensors, strict=True)
    )
    with torch.no_grad():
        for tensor in flat.tensors:
            tensor.mul_(2)
        works = [flat.gather_stepped(bucket) for bucket in range(len(flat))]
        for work in works:
            if work is not None:
                work.wait()
    return stayed, views, all(same(p, b * 2) for p, b in zip(own, before, strict=True))


@on_ranks(3, True)
def test_data_that_was_replaced_is_taken_back() -> bool:
    own = [torch.nn.Parameter(torch.ones(5000))]
    flat = FlatParameters(own, bucketed(own, 1, HERE.size), dist.group.WORLD)
    own[0].data = torch.full((5000,), 3.0)
    flat.restore_views(0)
    own[0].data.add_(1)  # now a view again
    return all(bool((tensor == 4).all()) for tensor in flat.tensors)


@on_ranks(3, True)
def test_masters_follow_what_others_write() -> bool:
    """What is written to a parameter outlives the next step, what the master knows beyond 16 bits too."""
    own = [torch.nn.Parameter(torch.ones(5000).bfloat16())]
    flat = FlatParameters(own, bucketed(own, 1, HERE.size), dist.group.WORLD, torch.float32)
    with torch.no_grad():
        for tensor in flat.tensors:
            tensor.add_(2**-12)  # too little for bfloat16
        own[0][::2] = 7
    flat.restore_views(0)
    whole = torch.full((5000,), 1 + 2**-12)
    whole[::2] = 7
    return all(same(t.detach(), whole[p.part]) for p, t in zip(flat.pieces, flat.tensors, strict=True))


def test_buckets_are_of_one_dtype():
    layout = bucketed(parameters(), 1 << 20, 2)
    assert sorted(map(len, layout.buckets)) == [1, 6]


def test_memory_order_is_undone_by_shape():
    for parameter in parameters():
        flat = in_memory_order(parameter.detach(), parameter)
        assert same(shaped(flat, parameter), parameter) and flat.is_contiguous()
    like, other = torch.empty(4, 6).t(), torch.arange(24.0).view(6, 4)
    assert same(shaped(in_memory_order(other, like), like), other)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(2, 3),
        torch.rand(2, 3).t(),
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(2, 1, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(2, 3, 1, 1).to(memory_format=torch.channels_last),
        torch.rand(4, 3, 2).permute(1, 2, 0),
        torch.rand(6)[::2],
        torch.rand(3).expand(2, 3),
        torch.rand(0, 3),
        torch.tensor(1.0),
    ],
)
def test_the_order_of_dimensions_is_that_of_memory(tensor):
    order = order_of(tensor)
    counted = tensor.permute(order) if order else tensor
    assert torch.equal(counted.reshape(-1), in_memory_order(tensor, tensor))


def test_row_major_order_has_one_name():
    assert order_of(torch.rand(2, 1, 3, 1).as_strided((2, 1, 3, 1), (3, 9, 1, 7))) == ()
    assert order_of(torch.rand(2, 3).t()) == (1, 0)


@on_ranks(2, (True, True))
def test_parts_are_gathered_as_they_are() -> tuple[bool, bool]:
    """Whether everybody has what each has written to its part; whether masters have stayed out of it."""
    own = [torch.nn.Parameter(torch.zeros(5000, dtype=torch.bfloat16))]
    flat = FlatParameters(own, bucketed(own, 1, HERE.size), dist.group.WORLD, torch.float32)
    flat.own(0).fill_(HERE.rank + 1)
    work = flat.gather(0)
    if work is not None:
        work.wait()
    found = own[0].detach().float().unique().tolist()
    return found == list(range(1, HERE.size + 1)), not flat.fp32_copies[0].any()


@pytest.mark.parametrize(
    ("stage", "said"), [(1, "was converted after it was wrapped"), (2, "converted to torch.float64")]
)
@on_ranks(2)
def test_a_conversion_is_what_the_step_names(stage: int, said: str) -> None:
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
    ddp.module.double()
    with pytest.raises(Exception, match=said):
        ddp(torch.ones(1, 12, dtype=torch.float64)).sum().backward()
        optimizer.step()


@on_ranks(2)
def test_a_model_that_is_converted_later_is_refused() -> None:
    """What is said of another dtype, also of a parameter without elements."""
    said = []
    for elements in (5000, 0):
        own = [torch.nn.Parameter(torch.ones(5000)), torch.nn.Parameter(torch.ones(elements))]
        flat = FlatParameters(own, bucketed(own, 1 << 20, HERE.size), dist.group.WORLD)
        own[1].data = own[1].data.half()
        said.append(error_of(flat.restore_views, 0))
    first, second = said
    assert "shape [5000] was torch.float32 on cpu" in first and "converted to torch.float16" in first
    assert "shape [0]" in second and "convert the model before it is wrapped" in second


@pytest.mark.parametrize(("stage", "overlap"), [(1, False), (2, False), (2, True), (3, False)])
@on_ranks(2)
def test_other_strides_and_shapes_are_what_is_named(stage: int, overlap: bool) -> None:
    """What step() says when strides or a shape have changed; nothing has moved then, and old ones serve."""
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1, overlap_with_ddp=overlap)
    weight, bias = ddp.module[2].weight, ddp.module[2].bias
    before, said = {n: v.clone() for n, v in ddp.full_state_dict().items()}, []
    changes = [(weight, lambda v: v.t()), (bias, lambda v: v.expand(3, -1)[:1])]
    for parameter, change in changes if stage > 1 else changes[:1]:  # autograd names other shapes
        old = parameter.data
        parameter.data = change(old)
        with pytest.raises(RuntimeError) as error:
            ddp(torch.ones(1, 12)).sum().backward()
            optimizer.step()
        said.append(str(error.value))
        parameter.data = old
        optimizer.zero_grad()
    after = ddp.full_state_dict()
    assert all(same(after[name], before[name]) for name in before)
    ddp(torch.ones(1, 12)).sum().backward()
    optimizer.step()
    strides, *shape = said
    assert "parameter 2.weight had shape [96, 96] and strides [96, 1]" in strides and "[1, 96] now" in strides
    assert len(shape) == (stage > 1)
    assert all("parameter 2.bias had shape [96]" in text and "has [1, 96] and" in text for text in shape)


@pytest.mark.parametrize("stage", [1, 2])
@on_ranks(2, error=("parameter weight had shape", "before the model is wrapped"))
def test_a_memory_format_that_comes_too_late_is_named(stage: int) -> None:
    module = torch.nn.Conv2d(3, 4, 3)
    ddp = DistributedDataParallel(module, zero_stage=stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
    ddp.to(memory_format=torch.channels_last)
    ddp(torch.ones(1, 3, 5, 5)).sum().backward()
    optimizer.step()


_C = _native.load()
BLOCK = _C.shard_block()


def random_case(seed: int) -> tuple[list[int], list[list[int]]]:
    source = random.Random(seed)
    lengths = [source.choice([0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 7 * BLOCK + 3]) for _ in range(12)]
    order = source.sample(range(12), 12)
    return lengths, [order[:1], order[1:5], order[5:]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(6))
def test_every_element_has_one_owner(seed, ranks):
    lengths, buckets = random_case(seed)
    layout = _C.ShardLayout(lengths, buckets, ranks)
    owned: dict[int, list[tuple[int, int]]] = {}
    for rank in range(ranks):
        for parameter, begin, length, bucket, offset in layout.pieces(rank):
            assert length > 0 and begin % BLOCK == 0 and parameter in buckets[bucket]
            assert offset >= 0 and offset + length <= layout.shard(bucket)
            place = layout.offsets(bucket)[buckets[bucket].index(parameter)]
            assert rank * layout.shard(bucket) + offset == place + begin
            owned.setdefault(parameter, []).append((begin, begin + length))
    for parameter, length in enumerate(lengths):
        covered = sorted(owned.get(parameter, []))
        assert [b for b, _ in covered] + [length] == [0] * bool(covered) + [e for _, e in covered] or length == 0


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_shards_are_equal_and_padding_is_counted(ranks):
    lengths, buckets = random_case(1)
    layout = _C.ShardLayout(lengths, buckets, ranks)
    for bucket, members in enumerate(buckets):
        assert layout.padded(bucket) == ranks * layout.shard(bucket) and layout.shard(bucket) % BLOCK == 0
        assert layout.padded(bucket) < sum(lengths[p] for p in members) + BLOCK * (len(members) + ranks)
    total = sum(layout.padded(bucket) for bucket in range(len(buckets)))
    assert sum(layout.padding(rank) for rank in range(ranks)) == total - sum(lengths)


@pytest.mark.parametrize(
    ("buckets", "ranks", "says"),
    [
        ([[0]], 2, "parameter 1 is in 0 buckets"),
        ([[0, 1], [1]], 2, "parameter 1 is in 2 buckets"),
        ([[0, 1, 2]], 2, "parameter 2, which is unknown"),
        ([[0, 1]], 0, "0 ranks"),
    ],
)
def test_bad_layouts_are_refused(buckets, ranks, says):
    with pytest.raises(dist.DistBackendError, match=says):
        _C.ShardLayout([3, 4], buckets, ranks)


def test_unknown_ranks_are_refused():
    with pytest.raises(dist.DistBackendError, match="rank 2 of 2"):
        _C.ShardLayout([3], [[0]], 2).pieces(2)
