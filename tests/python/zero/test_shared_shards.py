"""Shards in shared memory outlive their ranks, at any point of a step, also in the middle of a block."""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import mmap
import pathlib
import signal
import sys

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE, error_of, on_ranks
from ringdp import _native
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero import native
from ringdp.zero.regroup import Kept
from ringdp.zero.shared_shards import Journal, SharedShards

sys.path.append(str(pathlib.Path(__file__).parent.parent / "ddp"))
from leafy import STEPS, in_one_process, loss_of, made, optimizer_of, state_hash

pytestmark = pytest.mark.usefixtures("one_thread")
_C = _native.load()
LEAVES, CLIP = 7, 0.05
FATAL = 1
GONE: list[object] = []  # what a rank has left behind


@pytest.fixture
def fresh(run_on_fresh_ranks):
    """Worlds of a test alone, as ranks that are gone make fewer groups than others."""

    def made(size: int):
        world = run_on_fresh_ranks(size)
        world.join(60)
        return world

    return made


def run_leaves(ddp, step: int, group: dist.ProcessGroup) -> None:
    for leaf in range(group.rank(), LEAVES, group.size()):
        with ringdp.leaf(step, leaf):
            loss_of(ddp, HERE.rank, step, leaf).backward()
    ddp.finish_step()
    ringdp.clip_grad_norm_(ddp.parameters(), CLIP)


def some_are_gone(model: str, dtype: str, stage: int, gone: list[int], where: str) -> str:
    """From step FATAL on; where: how far they come in it. What others have is read where they have left it."""
    everybody = dist.group.WORLD
    others = dist.new_group([rank for rank in range(HERE.size) if rank not in gone])
    ddp = DistributedDataParallel(made(model, dtype), micro_batches=LEAVES, zero_stage=stage, bucket_cap_mb=0.001)
    ddp.reducer.keep_layout()
    optimizer = optimizer_of(ddp)
    is_gone = HERE.rank in gone
    group = everybody
    for step in range(STEPS):
        if step == 0 or (step == FATAL + 1):
            group = everybody if step == 0 else others
            ddp.regroup(group)
            optimizer.regroup(group, keep_next=1, in_shared_memory=True)
        run_leaves(ddp, step, group)
        optimizer.share_gradients()
        dist.barrier(group)  # the vote
        if step == FATAL:
            if where == "begun" and is_gone:
                optimizer.step()
            dist.barrier(everybody)
            if is_gone:
                GONE[:] = [ddp, optimizer]
                return ""
            behind = optimizer.steps_behind()
            dist.barrier(others)  # before one of these begins
            assert behind == (where == "begun")
        optimizer.step()
        if step != FATAL:
            optimizer.gather()
        optimizer.zero_grad()
    optimizer.release_next()
    return state_hash(ddp)


@pytest.mark.parametrize("where", ["shared", "begun"])
@pytest.mark.parametrize("gone", [[2], [0, 1]])
@pytest.mark.parametrize(("model", "stage"), [("branching", 1), ("branching", 2), ("tied", 3)])
def test_shards_outlive_ranks(fresh, model, stage, gone, where):
    want = in_one_process(model, LEAVES, clip=CLIP)
    got = fresh(3).run(some_are_gone, model, "float32", stage, gone, where)
    assert [hash_ for hash_ in got if hash_] == [want] * (3 - len(gone))


def by_turns(model: str, stage: int) -> str:
    """Shards in shared memory, copies of them, neither; the last group is of fewer ranks."""
    everybody, others = dist.group.WORLD, dist.new_group([0, 2])
    ddp = DistributedDataParallel(made(model), micro_batches=LEAVES, zero_stage=stage, bucket_cap_mb=0.001)
    ddp.reducer.keep_layout()
    optimizer = optimizer_of(ddp)
    keeps = [{"keep_next": 1, "in_shared_memory": True}, {"keep_next": 1}, {"keep_next": 2, "in_shared_memory": True}]
    for step, keep in enumerate(keeps):
        group = others if step == STEPS - 1 else everybody
        if group is others and HERE.rank == 1:
            return ""
        ddp.regroup(group)
        optimizer.regroup(group, **{**keep, "keep_next": min(keep["keep_next"], group.size() - 1)})
        run_leaves(ddp, step, group)
        optimizer.share_gradients()
        optimizer.step()
        optimizer.gather()
        optimizer.zero_grad()
    ddp.regroup(group)
    optimizer.regroup(group)
    return state_hash(ddp)


@pytest.mark.parametrize(("model", "stage"), [("branching", 1), ("branching", 2), ("tied", 3)])
def test_either_way_follows_the_other(fresh, model, stage):
    want = in_one_process(model, LEAVES, clip=CLIP)
    assert fresh(3).run(by_turns, model, stage) == [want, "", want]


OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True}),
    "Adam": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1, "maximize": True}),
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "paused": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),  # see shards_of()
}


def shards_of(name: str, dtype: str, stage: int, gone: int, at: int) -> list[str]:
    """The whole state after three steps. Rank `gone` is gone in step `at`, in which it has stepped one piece."""
    everybody = dist.group.WORLD
    others = dist.new_group([rank for rank in range(HERE.size) if rank != gone])
    kind, settings = OPTIMIZERS[name]
    ddp = DistributedDataParallel(
        made("branching" if stage < 3 else "plain", dtype), micro_batches=LEAVES, zero_stage=stage
    )
    ddp.reducer.keep_layout()
    master = {"master_dtype": torch.float32} if dtype == "bfloat16" else {}
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), kind, **settings, **master)
    group = everybody
    for step in range(3):
        if step in (0, at + 1):
            group = everybody if step == 0 else others
            ddp.regroup(group)
            optimizer.regroup(group, keep_next=1, in_shared_memory=True)
        optimizer.param_groups[0]["lr"] = 0.01 * (step + 1)
        if name == "paused":
            optimizer.param_groups[0]["momentum"] = 0.9 * (step != 1)
        run_leaves(ddp, step, group)
        optimizer.share_gradients()
        dist.barrier(group)
        if step == at and HERE.rank == gone:
            with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
                patch.setattr(native, "run", a_piece_of(native.run))
                optimizer.step()
            GONE[:] = [ddp, optimizer]
            dist.barrier(everybody)
            return []
        optimizer.step()
        if step == at:
            dist.barrier(everybody)
        else:
            optimizer.gather()
        optimizer.zero_grad()
    group = others if at < 3 else everybody
    ddp.regroup(group)
    optimizer.regroup(group)
    optimizer.consolidate_state_dict(to=0)
    state = optimizer.state_dict()["state"] if group.rank() == 0 else {}
    digest = hashlib.sha256()
    for number, entry in sorted(state.items()):
        for key, value in sorted(entry.items()):
            digest.update(f"{number} {key} {value.dtype} {value.tolist()}".encode())
    return [state_hash(ddp), digest.hexdigest()]


class Interrupted(Exception):
    """A step ends here."""


def a_piece_of(run):
    """Only the first piece is stepped."""

    def call(parts, journal):
        run(parts[:1], journal)
        raise Interrupted

    return call


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("dtype", "stage", "at"), [("float32", 1, 0), ("bfloat16", 2, 1), ("float32", 3, 2)])
def test_a_step_is_completed_whatever_steps(fresh, name, dtype, stage, at):
    """Another learning rate in each step; the first step makes the state."""
    world = fresh(3)
    undisturbed = world.run(shards_of, name, dtype, stage, 1, 3)
    made_whole = world.run(shards_of, name, dtype, stage, 1, at)
    assert made_whole[1] == [] and made_whole[0] == undisturbed[0] and made_whole[2][0] == undisturbed[2][0]


LENGTH = 3 * _C.StepJournal.block + 777


def arrays_in(path: str) -> tuple[Journal, list[torch.Tensor]]:
    """A journal of one piece, and its arrays, in a file that processes map."""
    size = Journal.nbytes(1, 1)
    whole = torch.from_file(path, shared=True, size=size + 16 * LENGTH, dtype=torch.uint8)
    return Journal(whole[:size], 1, 1), [*whole[size:].view(torch.float32).view(4, LENGTH)]


def steps_of(name: str, arrays: list[torch.Tensor]):
    kind, settings = OPTIMIZERS[name]
    group = kind([torch.nn.Parameter(torch.zeros(1))], **settings).param_groups[0]
    has_state = native.used_state(kind, native.settings_of(kind, group))
    used = [array if number <= has_state else None for number, array in enumerate(arrays)]
    return kind, native.settings_of(kind, group), used


def die_in_a_block(path: str, name: str, readable: int) -> None:
    """On a rank: of the gradient so many elements can be read, and the next one is a segmentation fault."""
    faulthandler.disable()
    journal, arrays = arrays_in(path)
    _, gradient = gradient_until(readable)
    kind, settings, used = steps_of(name, arrays)
    native.step_rest(kind, settings, used, 1.0, gradient, journal.blocks(0), 0)


def gradient_until(readable: int) -> tuple[mmap.mmap, torch.Tensor]:
    memory = mmap.mmap(-1, 4 * LENGTH + (-4 * LENGTH) % mmap.PAGESIZE)
    gradient = torch.frombuffer(memory, dtype=torch.float32)[:LENGTH]
    gradient.copy_(torch.randn(LENGTH, generator=torch.Generator().manual_seed(1)))
    if readable < LENGTH:
        begin = gradient.data_ptr() + 4 * readable
        assert begin % mmap.PAGESIZE == 0
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(mmap.PAGESIZE), 0)
    return memory, gradient


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("readable", [0, 1024, _C.StepJournal.block, 2 * _C.StepJournal.block + 5 * 1024])
def test_a_block_that_was_cut_short_is_undone_and_stepped_again(run_on_fresh_ranks, tmp_path, name, readable):
    path = str(tmp_path / "shared")
    (tmp_path / "shared").write_bytes(bytes(Journal.nbytes(1, 1) + 16 * LENGTH))
    journal, arrays = arrays_in(path)
    for number, array in enumerate(arrays):
        array.copy_(torch.rand(LENGTH, generator=torch.Generator().manual_seed(10 + number)))
    want = [array.clone() for array in arrays]
    world = run_on_fresh_ranks(1)
    world.begin(die_in_a_block, path, name, readable)
    assert world.status(0) == -signal.SIGSEGV
    done = int(journal.record(0).done[0])
    assert done == readable // _C.StepJournal.block * _C.StepJournal.block
    _, gradient = gradient_until(LENGTH)
    kind, settings, used = steps_of(name, arrays)
    if readable % _C.StepJournal.block:
        assert not torch.equal(arrays[0][done : done + 256], want[0][done : done + 256])  # torn
    journal.blocks(0).undo(0, used)
    native.step_rest(kind, settings, [None if a is None else a[done:] for a in used], 1.0, gradient[done:])
    native.step_rest(kind, settings, steps_of(name, want)[2], 1.0, gradient)
    assert all(map(torch.equal, arrays, want))


def wrapped(stage: int = 1, **options) -> tuple[DistributedDataParallel, ringdp.ZeroOptimizer]:
    ddp = DistributedDataParallel(made("plain"), micro_batches=LEAVES, zero_stage=stage)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), options.pop("kind", torch.optim.AdamW), lr=1e-2, **options)
    optimizer.regroup(dist.group.WORLD, keep_next=1, in_shared_memory=True)
    return ddp, optimizer


@on_ranks(2, True)
def test_what_would_not_reach_the_record_is_refused():
    ddp, optimizer = wrapped(kind=torch.optim.SGD)
    group, first = dist.group.WORLD, next(ddp.parameters())
    settings = optimizer.param_groups[0]

    def refused(said: str, before=lambda: None, *, shares=True, call=optimizer.step, kind=RuntimeError) -> None:
        run_leaves(ddp, 0, group)
        if shares:
            optimizer.share_gradients()
        before()
        assert said in error_of(call, kind=kind)
        settings.update(lr=0.1, momentum=0.0)
        optimizer.zero_grad()

    refused("step() without share_gradients()", shares=False)
    refused("may change this rank's gradients", call=optimizer.shard_grads)
    refused("has changed since share_gradients()", lambda: first.grad.mul_(2))
    refused("has changed since share_gradients()", lambda: setattr(first, "grad", None))
    refused("ringdp's kernels do not support", lambda: settings.update(lr=torch.tensor(0.1)))
    refused("step(fast=...)", call=lambda: optimizer.step(fast=1), kind=TypeError)
    run_leaves(ddp, 0, group)
    optimizer.share_gradients()
    optimizer.step()
    optimizer.gather()
    optimizer.zero_grad()
    refused("momentum_buffer is new since share_gradients()", lambda: settings.update(momentum=0.9))
    return True


@on_ranks(2, True)
def test_a_rank_that_is_a_step_behind_cannot_go_on():
    ddp, optimizer = wrapped()
    run_leaves(ddp, 0, dist.group.WORLD)
    optimizer.share_gradients()
    dist.barrier()
    if HERE.rank == 0:
        optimizer.step()
    dist.barrier()
    behind = optimizer.steps_behind()
    said = error_of(optimizer.regroup, dist.group.WORLD)
    return behind == HERE.rank and "has made 0 steps in the latest group and another 1" in said


@pytest.mark.parametrize(
    ("options", "is_shared"),
    [({}, True), ({"kind": torch.optim.Adagrad}, False), ({"fused": True}, True), ({"stage": 3}, True)],
)
def test_elsewhere_the_next_rank_keeps_a_copy(world_of, options, is_shared):
    assert world_of(2).run(keeps_copies, options) == [not is_shared] * 2


def keeps_copies(options: dict[str, object]) -> bool:
    ddp, optimizer = wrapped(**options)
    run_leaves(ddp, 0, dist.group.WORLD)
    optimizer.share_gradients()
    optimizer.step()
    shard = sum(len(flat.own(bucket)) for flat in optimizer._flats for bucket in range(len(flat)))
    assert optimizer.memory().copies <= 4 * shard or not isinstance(optimizer._next, SharedShards)
    return not isinstance(optimizer._next, SharedShards)


@on_ranks(2, True)
def test_a_step_may_be_left_out():
    """After share_gradients(), on all ranks; at stage 2 the next one may be clipped."""
    ddp, optimizer = wrapped(2)
    for step in range(3):
        run_leaves(ddp, step, dist.group.WORLD)
        optimizer.share_gradients()
        if step != 1:
            optimizer.step()
            optimizer.gather()
        optimizer.zero_grad()
    return {float(entry["step"]) for entry in optimizer.state.values()} <= {2.0}


@on_ranks(2, True)
def test_a_gradient_that_is_dropped_from_shards_is_noticed():
    ddp, optimizer = wrapped(2)
    run_leaves(ddp, 0, dist.group.WORLD)
    optimizer.share_gradients()
    next(ddp.parameters()).grad = None
    return "a gradient was dropped since share_gradients()" in error_of(optimizer.step)


@on_ranks(2, True, heap_bytes=64 << 20)
def test_where_there_is_no_room_copies_are_kept_or_the_error_says_so():
    """4 MB of parameters: about 30 MB while shards are cut."""
    ddp = DistributedDataParallel(torch.nn.Linear(1024, 1024), micro_batches=2, zero_stage=1)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1e-2)
    kinds = []
    for room in (20 << 20, 64 << 20):
        taken = ringdp.empty((64 << 20) - room, dtype=torch.uint8)
        optimizer.regroup(dist.group.WORLD, keep_next=1, in_shared_memory=True)
        kinds.append(type(optimizer._next))
        del taken
    with ringdp.leaf(0, HERE.rank):
        ddp(torch.ones(1, 1024)).sum().backward()
    ddp.finish_step()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    taken = ringdp.empty(backend.heap_room() - (2 << 20), dtype=torch.uint8)
    said = error_of(optimizer.share_gradients)
    return kinds == [Kept, SharedShards] and "set heap_bytes higher" in said and len(taken) > 0
