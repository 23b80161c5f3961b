"""Saving: the plan that ranks agree on, who writes what, a save in the background."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE, on_ranks
from ringdp.checkpoint import CheckpointError, Spec, Stretch, saving
from ringdp.checkpoint.background import Pending, finish_latest, join_latest
from ringdp.checkpoint.manifest import read_manifest
from ringdp.checkpoint.ranks import Ranks, async_group_of, ranks_of
from ringdp.checkpoint.saving import BLOCK_BYTES, plan_save, specs_of, write_plan
from small_run import Run
from states import SHAPES, Sharded, assembled, assert_same_bits, bits_of, layout, odd_state
from torch import nn

checkpoint = ringdp.checkpoint


def save_odd(folder: str, seed: int, way: str) -> tuple[str, list]:
    holder = Sharded(odd_state(seed), HERE.rank, HERE.size, seed)
    if way == "sync":
        path = checkpoint.save(folder, holder)
    else:
        pending = checkpoint.save_async(folder, holder)
        for piece in holder.held:
            piece.tensor.zero_()  # training goes on
        path = pending.wait()
    return str(path), [piece.stretch for piece in holder.held]


def contents(folder) -> dict:
    tensors = checkpoint.read(folder).tensors
    return {(kind, name): tensor for kind, named in tensors.items() for name, tensor in named.items()}


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_save_one_checkpoint(world_of, size, way, tmp_path):
    results = world_of(size).run(save_odd, str(tmp_path), 3, way)
    assert {path for path, _ in results} == {str(tmp_path / "checkpoint-000001")}
    assert_same_bits(contents(tmp_path), odd_state(3))
    manifest = read_manifest(tmp_path / "checkpoint-000001")
    assert manifest.ranks == size
    stored = [(block.spec, at) for block in manifest.hashes for at in range(block.offset, block.stop)]
    assert len(stored) == len(set(stored)) == sum(spec.elements for spec in manifest.specs)


def save_replicas(folder: str) -> None:
    model = nn.Linear(64, 64, bias=False)
    nn.init.constant_(model.weight, 0.5)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    checkpoint.save(folder, model, optimizer)


def test_replicas_are_written_in_balanced_parts(trio, tmp_path):
    trio.run(save_replicas, str(tmp_path))
    written = [(tmp_path / "checkpoint-000001" / f"__{rank}_0.distcp").stat().st_size for rank in range(3)]
    assert min(written) > 64 * 64 * 4  # one of the three tensors of this size each


def save_badly(folder: str, how: str, bad: int) -> None:
    state = odd_state(1)
    holder = Sharded(state, HERE.rank, HERE.size, 1)
    extra: object = None
    keep = 2
    if HERE.rank == bad:
        if how == "torn":
            holder.pieces = lambda: (_ for _ in ()).throw(ValueError("the state is torn"))
        elif how == "extra":
            extra = lambda: 0  # noqa: E731
        elif how == "gap":
            holder.held = [piece for piece in holder.held if piece.kind != "exp_avg"]
        elif how == "settings":
            holder.values = {"optimizer": {"lr": 2}}
        elif how == "keep":
            keep = 0
        elif how == "disk":
            checkpoint.saving.write_blocks = refuse_to_write
    try:
        checkpoint.save(folder, holder, extra=extra, keep=keep)
    finally:
        checkpoint.saving.write_blocks = checkpoint.blocks.write_blocks


def refuse_to_write(*_: object) -> None:
    raise OSError("no space left on device")


BAD = {
    "torn": "saving a checkpoint, on rank {}: ValueError: the state is torn",
    "extra": "saving a checkpoint, on rank {}: a function cannot be stored",
    "gap": "no rank holds elements",
    "settings": "the ranks differ in settings: rank 0 has",
    "keep": "saving a checkpoint, on rank {}: keep is 0",
    "disk": "writing a checkpoint, on rank {}: OSError: no space left on device",
}


@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("how", BAD)
def test_an_error_on_one_rank_is_raised_on_all_and_leaves_nothing(trio, how, bad, tmp_path):
    trio.run(save_odd, str(tmp_path), 1, "sync")
    errors = {outcome.error for outcome in trio.attempt(save_badly, str(tmp_path), how, bad)}
    assert len(errors) == 1
    assert BAD[how].format(bad) in errors.pop()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["checkpoint-000001"]
    assert_same_bits(contents(tmp_path), odd_state(1))
    trio.run(save_odd, str(tmp_path), 2, "sync")
    assert_same_bits(contents(tmp_path), odd_state(2))


def save_twice_in_the_background(folder: str, fail_first: bool) -> list[str]:
    said = []
    holder = Sharded(odd_state(1), HERE.rank, HERE.size, 1)
    real = checkpoint.saving.write_blocks
    if fail_first and HERE.rank == 1:
        checkpoint.saving.write_blocks = refuse_to_write
    first = checkpoint.save_async(folder, holder)
    first.join()
    checkpoint.saving.write_blocks = real
    for _ in range(2):
        try:
            said.append(checkpoint.save_async(folder, holder).wait().name)
        except CheckpointError as error:
            said.append(str(error))
    return said


def test_the_save_before_is_waited_for(pair, tmp_path):
    names = ["checkpoint-000002", "checkpoint-000003"]
    assert pair.run(save_twice_in_the_background, str(tmp_path), False) == [names] * 2


def test_an_error_in_the_background_is_raised_once_by_the_next_save(pair, tmp_path):
    first, second = pair.run(save_twice_in_the_background, str(tmp_path), True)
    assert first == second
    assert "writing a checkpoint, on rank 1: OSError: no space left on device" in first[0]
    assert first[1] == "checkpoint-000001"


def test_one_process_saves_without_a_group(tmp_path):
    run = Run()
    run.steps(1)
    path = checkpoint.save(tmp_path, run.model, run.optimizer, extra=run.extra, keep=1)
    assert checkpoint.save_async(str(tmp_path), run.model, run.optimizer, keep=1).wait() != path
    assert [p.name for p in Path(tmp_path).iterdir() if p.is_dir()] == ["checkpoint-000002"]


def test_assembling_takes_every_piece():
    """The tests' own oracle: the pieces of all ranks make the whole."""
    held = [Sharded(odd_state(1), rank, 3, 5).held for rank in range(3)]
    assert_same_bits(assembled(held), odd_state(1))


def planned(folder: str, keep: object) -> list:
    """(stretch, bits) of this rank's blocks; `keep` is this rank's own."""
    holder = Sharded(odd_state(2), HERE.rank, HERE.size, 4)
    agreed = plan_save(Path(folder), holder, None, HERE.rank, keep[HERE.rank], ranks_of(None))
    assert agreed.extras == list(range(HERE.size))
    assert len(agreed.rng) == HERE.size
    return [(stretch, bits_of(tensor)) for stretch, tensor in agreed.blocks.items()]


def test_all_blocks_together_are_the_state(trio, tmp_path):
    state = odd_state(2)
    blocks = [block for blocks in trio.run(planned, str(tmp_path), [2, 2, 2]) for block in blocks]
    for stretch, bits in blocks:
        flat = state[stretch.spec.kind, stretch.spec.name].reshape(-1)
        assert bits == bits_of(flat[stretch.offset : stretch.stop])
    assert sum(stretch.length for stretch, _ in blocks) == sum(tensor.numel() for tensor in state.values())
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("keep", [[2, 2, 3], [2, None, 2]])
def test_ranks_that_mean_different_saves_are_named(trio, keep, tmp_path):
    odd = next(rank for rank in range(3) if keep[rank] != 2)
    errors = {outcome.error for outcome in trio.attempt(planned, str(tmp_path), keep)}
    assert errors == {f"CheckpointError: the ranks differ in keep: rank 0 has 2, rank {odd} {keep[odd]}"}


def test_a_copy_does_not_change_with_the_state(tmp_path):
    holder = Sharded(odd_state(2), 0, 1, 1)
    agreed = plan_save(tmp_path, holder, None, None, 2, ranks_of(None))
    before = {stretch: bits_of(tensor) for stretch, tensor in agreed.blocks.items()}
    copied = agreed.copy()
    for piece in holder.held:
        piece.tensor.zero_()
    assert {stretch: bits_of(tensor) for stretch, tensor in copied.blocks.items()} == before
    assert {stretch: bits_of(tensor) for stretch, tensor in agreed.blocks.items()} != before


SPECS = [Spec(kind, name, shape, str(dtype)[6:]) for (kind, name), (shape, dtype) in SHAPES.items()]


def held_by(size: int, seed: int) -> list[list[Stretch]]:
    return [[stretch for spec in SPECS for stretch in layout(spec, size, seed)[rank]] for rank in range(size)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_element_is_written_once_by_a_rank_that_holds_it(size, seed, monkeypatch):
    monkeypatch.setattr(saving, "BLOCK_BYTES", 64)
    held = held_by(size, seed)
    written = Counter()
    for rank, blocks in enumerate(write_plan(held)):
        for block in blocks:
            assert 0 < block.bytes <= 64
            around = [have for have in held[rank] if have.spec == block.spec]
            assert any(have.offset <= block.offset and block.stop <= have.stop for have in around)
            written.update((block.spec, at) for at in range(block.offset, block.stop))
    assert written == Counter((spec, at) for spec in SPECS for at in range(spec.elements))
    assert specs_of(held) == sorted(SPECS)


def test_replicas_are_dealt_out_evenly():
    spec = Spec("parameter", "w", (8 * BLOCK_BYTES,), "uint8")
    loads = [sum(block.bytes for block in blocks) for blocks in write_plan([[Stretch(spec, 0, spec.elements)]] * 4)]
    assert loads == [2 * BLOCK_BYTES] * 4


def test_replicas_fill_up_what_uneven_shards_leave():
    alone, replica = Spec("a", "w", (BLOCK_BYTES,), "uint8"), Spec("b", "w", (BLOCK_BYTES,), "uint8")
    mine, ours = Stretch(alone, 0, BLOCK_BYTES), Stretch(replica, 0, BLOCK_BYTES)
    assert write_plan([[mine, ours], [ours]]) == [[mine], [ours]]


def test_a_piece_offered_twice_by_one_rank_is_written_once():
    spec = Spec("parameter", "w", (10,), "float32")
    assert write_plan([[Stretch(spec, 0, 10), Stretch(spec, 3, 4)]]) == [
        [Stretch(spec, 0, 3), Stretch(spec, 3, 4), Stretch(spec, 7, 3)]
    ]


def test_elements_that_no_rank_holds_are_named():
    spec = Spec("exp_avg", "w", (10,), "float32")
    with pytest.raises(CheckpointError, match=r"no rank holds elements 4 to 6 of exp_avg/w \(float32 \[10\]\)"):
        write_plan([[Stretch(spec, 0, 4)], [Stretch(spec, 6, 4)]])


def test_ranks_that_disagree_about_a_tensor_are_named():
    here, there = Spec("exp_avg", "w", (10,), "float32"), Spec("exp_avg", "w", (10,), "float64")
    with pytest.raises(CheckpointError, match=r"rank 0 has exp_avg/w \(float32 .* rank 1 has exp_avg/w \(float64"):
        write_plan([[Stretch(here, 0, 10)], [Stretch(there, 0, 10)]])


def failing() -> Path:
    raise OSError("disk full")


def test_wait_gives_the_path():
    gate = threading.Event()
    pending = Pending(lambda: Path("here") if gate.wait(60) else Path("late"))
    assert not pending.done()
    gate.set()
    assert pending.wait() == Path("here")
    assert pending.done()
    finish_latest()


def test_wait_raises_the_error_and_the_next_save_does_not_repeat_it():
    pending = Pending(failing)
    with pytest.raises(OSError, match="disk full"):
        pending.wait()
    finish_latest()


def test_the_next_save_raises_what_nobody_has_seen():
    Pending(failing)
    join_latest()  # a load waits and leaves the error alone
    with pytest.raises(OSError, match="disk full"):
        finish_latest()
    finish_latest()


def test_the_next_save_waits():
    gate = threading.Event()
    pending = Pending(lambda: Path("x") if gate.wait(60) else Path("late"))
    threading.Timer(0.01, gate.set).start()
    finish_latest()
    assert pending.done()


def test_an_interpreter_that_ends_waits_and_tells(run_python):
    code = (
        "import time\nfrom ringdp.checkpoint.background import Pending\n"
        "def fail():\n    time.sleep(0.2)\n    raise OSError('disk full')\nPending(fail)"
    )
    result = run_python(code)
    assert "the last save in the background failed: disk full" in result.stderr


# A step on all ranks has all results or one error, also over the async group of a background save.


def on_rank(bad: list[int]) -> object:
    def action() -> int:
        if HERE.rank in bad:
            raise KeyError(f"from {HERE.rank}")
        return HERE.rank * 10

    return ranks_of(None).agree("counting", action)


def kept_on_rank() -> object:
    own = ranks_of(None).keep("keeping", lambda: lambda: HERE.rank)  # a closure cannot travel
    return own()


def test_every_rank_has_every_result(trio):
    assert trio.run(on_rank, []) == [[0, 10, 20]] * 3


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([1], "counting, on rank 1: KeyError: 'from 1'"),
        ([0, 2], "counting, on rank 0 (and on rank 2): KeyError: 'from 0'"),
    ],
)
def test_an_error_on_one_rank_is_raised_on_all(trio, bad, said):
    assert [outcome.error for outcome in trio.attempt(on_rank, bad)] == [f"CheckpointError: {said}"] * 3
    assert trio.run(on_rank, []) == [[0, 10, 20]] * 3


def test_a_result_can_be_kept(trio):
    assert trio.run(kept_on_rank) == [0, 1, 2]


@on_ranks(3, "of rank 0")
def test_rank_0_can_decide() -> object:
    return ranks_of(None).on_first("choosing", lambda: f"of rank {HERE.rank}")


def test_a_process_alone_needs_no_group():
    alone = ranks_of(None)
    assert alone == Ranks(None, 0, 1)
    assert alone.agree("x", lambda: 5) == [5]
    with pytest.raises(CheckpointError, match=r"^walking: ZeroDivisionError") as caught:
        alone.agree("walking", lambda: 1 / 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def both_at_once(members: list[int]) -> object:
    group = dist.new_group(members) if len(members) < dist.get_world_size() else dist.group.WORLD
    if dist.get_rank() not in members:
        return None
    ranks = ranks_of(group)
    twin = async_group_of(ranks)
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.extend(twin.agree("in the thread", lambda: twin.rank)))
    thread.start()
    total = torch.ones(5, dtype=torch.float64)
    for _ in range(20):
        dist.all_reduce(total, group=group)
    thread.join()
    same = async_group_of(ranks).group is twin.group is not group
    return same, said, total[0].item()


def test_it_is_made_once_and_used_beside_the_group(trio):
    assert trio.run(both_at_once, [0, 1, 2]) == [(True, [0, 1, 2], 3.0**20)] * 3


def test_a_group_of_some_ranks_has_a_twin_of_those(run_on_fresh_ranks):
    """Ranks that other tests used may be in different numbers of groups, where it is refused by name."""
    world = run_on_fresh_ranks(3)
    world.join()
    assert world.run(both_at_once, [0, 2]) == [(True, [0, 1], 2.0**20), None, (True, [0, 1], 2.0**20)]


def test_a_process_alone_needs_none():
    assert async_group_of(Ranks(None, 0, 1)) == Ranks(None, 0, 1)
