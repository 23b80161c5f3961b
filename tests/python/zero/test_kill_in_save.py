"""SIGKILL at random moments of a sharded save: the checkpoint before it loads, and has the bits of its step."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ringdp
import torch
from ranks import HERE, World
from ringdp.testing import one_process
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import loss_of
from zero_rig import ADAMW, model, same, steps, wrapped

checkpoint = ringdp.checkpoint
DEADLINE_S = 60


def train_for_ever(folder: str, told: str) -> None:
    """On a rank: goes on from the latest checkpoint, saves after every step, and then says so by a byte in `told`."""
    ddp = wrapped(2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    begin = 0
    if any(Path(folder).glob("checkpoint-*")):
        begin = checkpoint.load(folder, ddp, optimizer).extra
    with open(told, "ab", buffering=0) as acknowledged:
        for step in itertools.count(begin):
            steps(ddp, optimizer, 1, start=step)
            checkpoint.save(folder, ddp, optimizer, extra=step + 1)
            if HERE.rank == 0:
                acknowledged.write(b"+")


class Uninterrupted:
    """The same training in one process, as far as it is asked for."""

    def __init__(self) -> None:
        self.model, self.step = model(), 0
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW)

    def differences(self, found: Any) -> list[str]:
        """What a checkpoint does not have as it was after its step."""
        wanted = found.extras[0]
        for step in range(self.step, wanted):
            at = self._at(step)
            one_process(self.model, self.optimizer, at, ranks=2, steps=1)
        self.step = wanted
        wrong = [] if found.extras == [wanted] * 2 else [f"extras {found.extras}"]
        for name, parameter in self.model.named_parameters():
            expected = {"parameter": parameter, **self.optimizer.state[parameter]}
            wrong += [f"{kind}/{name}" for kind, t in expected.items() if not same(found.tensors[kind][name], t)]
        return wrong

    def _at(self, step: int) -> Callable[..., torch.Tensor]:
        return lambda model, rank, _, micro: loss_of(model, rank, step, micro)


def wait_for(told: Path, count: int) -> float:
    """Until so many saves are complete; when that was."""
    deadline = time.monotonic() + DEADLINE_S
    while not told.exists() or told.stat().st_size < count:
        assert time.monotonic() < deadline, f"{count} saves were not complete after {DEADLINE_S} s"
        time.sleep(0.0005)
    return time.monotonic()


def kill_one_round(folder: Path, told: Path, draw: random.Random) -> int:
    """Kills a rank, or both, in the middle of training; the saves that were complete when this round began."""
    before = told.stat().st_size if told.exists() else 0
    victims = draw.choice([[0], [1], [0, 1]])
    with World(2) as world:
        world.join()
        world.begin(train_for_ever, str(folder), str(told))
        first = wait_for(told, before + 1)
        usual_s = wait_for(told, before + 2) - first
        time.sleep(draw.uniform(0, 2 * usual_s))  # the moment of death, not a wait for anything
        for victim in victims:
            world.kill(victim)
        for rank in {0, 1} - set(victims):
            assert world.finish([rank])[0].error
    return before


@pytest.mark.parametrize("rounds", [pytest.param(50, marks=pytest.mark.long), 4])
def test_the_checkpoint_before_a_kill_loads(tmp_path, rounds):
    folder, told = tmp_path / "saved", tmp_path / "told"
    alone, draw = Uninterrupted(), random.Random(1)
    in_the_middle = 0
    for number in range(rounds):
        before = kill_one_round(folder, told, draw)
        acknowledged, found = told.stat().st_size, checkpoint.read(folder)
        assert acknowledged >= before + 2
        # Of the dead at most one save is complete that they have not told.
        assert acknowledged <= found.extras[0] <= acknowledged + 1, f"round {number}"
        assert alone.differences(found) == [], f"round {number}"
        told.write_bytes(b"+" * found.extras[0])
        in_the_middle += any(folder.glob(".unfinished-*"))
    print(f"{rounds} kills, {in_the_middle} of them between the beginning of a save and its end")
