"""Whatever ends, stops or fails on one rank, in whatever phase: the others get the right result, or its name."""

from __future__ import annotations

import re
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import ringdp
from calls import KNOWN
from chaos import STATUS, TIMEOUT_S, Life, Lived, digest, in_one_process, live
from forked import end_interpreter
from ranks import World

FEW, MANY = range(10_132, 10_144), range(10_000, 10_500)  # seeds; none of the few is a stop, which takes a deadline
SLACK_S = 30.0  # what a busy machine may add to a deadline
PAUSE_S = 0.3
GOOD = ("right", "named", "not met")
ENDS = {"kill": -signal.SIGKILL, "term": -signal.SIGTERM, "raise": 1, "exit": STATUS, "_exit": STATUS}


@dataclass
class Verdict:
    """kind: one of GOOD, or what is wrong. waited: from the fault to the last survivor's error, in seconds."""

    kind: str
    why: str = ""
    waited: float | None = None
    errors: dict[int, str] = field(default_factory=dict)


def lived(life: Life) -> Verdict:
    """One life of a world of its own, and what it came to."""
    wanted = in_one_process(life.size)
    with World(life.size, **life.settings) as world, tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        world.begin(live, life.seed, wanted, folder)
        survivors = [rank for rank in range(life.size) if rank != life.victim]
        if life.fault == "pause" and wait_until_stopped(world, life.victim):
            time.sleep(PAUSE_S)
            world.signal(life.victim, signal.SIGCONT)
        ends = {rank: end_of(world, rank) for rank in survivors}
        if life.fault == "stop" and world.status(life.victim, 0) is None:
            world.signal(life.victim, signal.SIGCONT)
        ends[life.victim] = end_of(world, life.victim)
        said = re.search(r"struck at ([\d.]+)", world.stderr(life.victim))
        struck = float(said[1]) if said else None
        verdict = judged(life, ends, struck, [world.pid(rank) for rank in range(life.size)])
        if verdict.kind in GOOD and life.phase.startswith(("save", "load")):
            verdict = on_disk(Path(folder), wanted, ends) or verdict
        if verdict.kind not in GOOD:
            verdict.why += "".join(f"\n--- rank {rank}: {world.stderr(rank)[-1500:]}" for rank in range(life.size))
        return verdict


def wait_until_stopped(world: World, rank: int) -> bool:
    """Whether it is, before it has said how it has fared."""
    deadline = time.monotonic() + SLACK_S
    while not world.has_answered(rank) and time.monotonic() < deadline:
        if Path(f"/proc/{world.pid(rank)}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.002)
    return False


def end_of(world: World, rank: int) -> Lived | int | str:
    """What the rank says of its life when it has also ended as scripts do, else its status; "hang"."""
    try:
        [outcome] = world.finish([rank], within=TIMEOUT_S + SLACK_S)
    except TimeoutError:
        return "hang"
    except AssertionError:  # it died
        status = world.status(rank)
        return "hang" if status is None else status
    if outcome.error:
        return outcome.trace
    world.begin(end_interpreter, 0, ranks=[rank])
    status = world.status(rank, SLACK_S)
    if status is None:
        return world.finish([rank], within=0)[0].trace if world.has_answered(rank) else "hang"
    return status or Lived(*outcome.value)


def judged(life: Life, ends: dict[int, Lived | int | str], struck: float | None, pids: list[int]) -> Verdict:
    """What the ends of all ranks come to."""
    for rank, end in sorted(ends.items()):
        if isinstance(end, str):
            kind = "hang" if end == "hang" else "silent" if "a wrong number" in end else "crash"
            return Verdict(kind, f"rank {rank}: {end}")
        if isinstance(end, int):
            expected = {0} if life.phase == "exit" else set()
            if rank == life.victim and struck is not None:
                expected.add(ENDS.get(life.fault, 0))
            if end not in expected:
                return Verdict("crash", f"rank {rank} ended with status {end}")
    told = {rank: end for rank, end in ends.items() if isinstance(end, Lived) and end.error}
    errors = {rank: end.error for rank, end in told.items()}
    for rank, error in errors.items():
        if not is_named(life, rank, error, {*errors} - {rank} | {life.victim}, pids):
            return Verdict("unnamed", f"rank {rank}: {error}", errors=errors)
    if struck is None:
        return Verdict("unasked" if errors else "not met", str(errors))
    waited = max((end.at - struck for rank, end in told.items() if rank != life.victim), default=None)
    return Verdict("named" if errors else "right", "", waited, errors)


def is_named(life: Life, rank: int, error: str, culprits: set[int], pids: list[int]) -> bool:
    """Whether an error is one of ours and names the victim, or a survivor that has an error and may have left first.

    The victim itself may say what it raised. torch's store now and then lets a new connection wait for seconds.
    """
    kind = re.match(r"DistBackendError: (\w+): |CheckpointError: ", error)
    if not kind or (kind[1] and kind[1] not in KNOWN):
        return rank == life.victim and "on purpose" in error
    if "the rendezvous store has not answered" in error:
        return life.phase.partition(",")[0] in ("init", "new_group", "split_group", "save_async")  # they make groups
    return any(re.search(rf"rank {culprit}\b|pid {pids[culprit]}\b", error) for culprit in culprits)


def on_disk(folder: Path, wanted: list[str], ends: dict[int, Lived | int | str]) -> Verdict | None:
    """What is wrong with the latest checkpoint: it must be whole, and none that was complete may be gone."""
    saved = max((end.saved for end in ends.values() if isinstance(end, Lived)), default=0)
    try:
        found = ringdp.checkpoint.read(folder)
    except ringdp.checkpoint.CheckpointError as error:
        return Verdict("silent", f"step {saved} was saved: {error}") if saved else None
    step = found.extras[0]
    if set(found.extras) != {step} or step < saved or digest(found.tensors["parameter"]) != wanted[step - 1]:
        return Verdict("silent", f"the checkpoint says {found.extras}, {saved} was saved")
    return None


def lives(seeds: range) -> list[tuple[Life, Verdict]]:
    """The lives of these seeds; each that is bad is printed with its seed, which repeats it."""
    all_of_them = []
    for seed in seeds:
        life = Life.drawn(seed)
        verdict = lived(life)
        all_of_them.append((life, verdict))
        if verdict.kind not in GOOD:
            print(f"{life}: {verdict.kind}: {verdict.why}")
    return all_of_them


def summary(all_of_them: list[tuple[Life, Verdict]]) -> str:
    """How many lives came to what, and when survivors were told; a stopped rank is named at the deadline."""
    text = str(dict(Counter(verdict.kind for _, verdict in all_of_them)))
    for what, stopped in (("after the fault", False), ("after the fault, of stopped ranks", True)):
        named = [v for life, v in all_of_them if v.waited is not None and (life.fault == "stop") == stopped]
        if named:
            times = sorted(verdict.waited for verdict in named)
            at = {share: round(times[int(share * (len(times) - 1))], 3) for share in (0.5, 0.9, 0.99, 1.0)}
            text += f"; {len(named)} named {what}: within 1 s {sum(t <= 1 for t in times)}, seconds by share {at}"
    return text


def check(seeds: range) -> None:
    found = lives(seeds)
    print(summary(found))
    assert {verdict.kind for _, verdict in found} <= set(GOOD)
    assert sum(verdict.kind == "named" for _, verdict in found) >= len(seeds) // 4


def test_a_fault_in_any_phase_is_named():
    check(FEW)


@pytest.mark.long
def test_five_hundred_faults():
    check(MANY)
