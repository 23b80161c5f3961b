"""micro_batches=M: a run that changes its ranks and its stage through checkpoints is the run that never changed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import leafy
import pytest
import ringdp
from leaf_cells import AXES, final_state, loss_of, made, state_of, wrapped
from ranks import HERE, group_of
from ringdp.testing import one_process
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("one_thread")
MICRO_BATCHES, STEPS = 12, 9
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Part:
    """Until this step, from the checkpoint of the part before."""

    ranks: int
    stage: int
    path: str
    until: int


def parts_of(seed: int, ranks: tuple[int, ...]) -> list[Part]:
    """Of these numbers of ranks; they end at random steps, on random paths, and stages change each time."""
    draw = random.Random(seed)
    ends = [*sorted(draw.sample(range(1, STEPS), len(ranks) - 1)), STEPS]
    stages = [draw.choice(STAGES)]
    while len(stages) < len(ranks):
        stages.append(draw.choice([stage for stage in STAGES if stage != stages[-1]]))
    paths = [draw.choice(AXES["path"]) for _ in ranks]
    return [Part(*values) for values in zip(ranks, stages, paths, ends, strict=True)]


def rate_at(step: int) -> float:
    """A schedule, so that a step that comes twice or not at all is seen."""
    return 1e-2 / (1 + step)


def run_part(folder: str, model: str, part: Part, allotment: str) -> tuple[str, str]:
    """On a rank: digests of values and, on rank 0, of the optimizer's state."""
    group = group_of("gloo" if part.path == "gloo" else "ringdp")
    ddp = wrapped(model, "float32", part.stage, process_group=group, micro_batches=MICRO_BATCHES)
    optimizer = leafy.optimizer_of(ddp)
    first = 0
    if Path(folder).is_dir():
        first = ringdp.checkpoint.load(folder, ddp, optimizer, group=group).extra["step"]
    for step in range(first, part.until):
        for leaf in leafy.allotment(f"{allotment} {step}", MICRO_BATCHES, HERE.size)[HERE.rank]:
            with ringdp.leaf(step, leaf):
                loss_of(model, ddp, step, leaf).backward()
        ddp.finish_step()
        ringdp.clip_grad_norm_(ddp.parameters(), 0.5)
        for settings in optimizer.param_groups:
            settings["lr"] = rate_at(step)
        optimizer.step()
    ringdp.checkpoint.save(folder, ddp, optimizer, group=group, extra={"step": part.until})
    return final_state(ddp, optimizer)


def undisturbed(name: str) -> tuple[str, str]:
    model = made(name, "float32")
    optimizer = leafy.optimizer_for(model)

    def loss(model: nn.Module, rank: int, step: int, leaf: int) -> Tensor:
        return loss_of(name, model, step, leaf)

    def before(step: int) -> None:
        ringdp.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.param_groups[0]["lr"] = rate_at(step)

    one_process(model, optimizer, loss, steps=STEPS, micro_batches=MICRO_BATCHES, on_gradients=before)
    return state_of(model.state_dict(), optimizer.state_dict())


def check_run(world_of, folder: Path, model: str, seed: int, ranks: tuple[int, ...]) -> None:
    parts = parts_of(seed, ranks)
    for part in parts:
        world = world_of(part.ranks, transport="tcp" if part.path == "tcp" else "shm")
        found = world.run(run_part, str(folder / "run"), model, part, str(seed))
    want = undisturbed(model)
    assert found[0] == want and all(values == want[0] for values, _ in found), (model, parts)


def test_a_run_may_change_between_any_two_steps(world_of, tmp_path):
    check_run(world_of, tmp_path, "branching", 0, (3, 1, 2))


@pytest.mark.long
@pytest.mark.parametrize("model", ["branching", "gpt", "conv", "odd"])
@pytest.mark.parametrize("seed", range(4))
def test_eight_five_one_and_seven_ranks(world_of, tmp_path, seed, model):
    check_run(world_of, tmp_path, model, seed, (8, 5, 1, 7))


def test_the_parts_differ():
    drawn = [parts_of(seed, (8, 5, 1, 7)) for seed in range(4)]
    assert all(len({part.until for part in parts}) == 4 and parts[-1].until == STEPS for parts in drawn)
    assert {part.stage for parts in drawn for part in parts} == set(STAGES)
    assert {part.path for parts in drawn for part in parts} == set(AXES["path"])
    assert all(one.stage != other.stage for parts in drawn for one, other in pairwise(parts))
