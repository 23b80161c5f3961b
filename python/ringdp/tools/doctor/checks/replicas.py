"""Ranks that do not train one model together: replicas that differ, gradients that nothing averages, the same work.

Parameters are replicas where a DistributedDataParallel says so, and without one where they were equal before the first
step, or where their gradients are equal: ranks that hold shards or stages of a model are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringdp.text.units import counted, names
from ringdp.tools.attach.finding import Finding
from ringdp.tools.doctor.checks import feed
from ringdp.tools.doctor.evidence import Evidence

_SHOWN = 3
_NEVER_REPAIRED = "averaging gradients never makes parameters equal again: each rank trains and saves another model"

Checksums = Sequence[int | None]


@dataclass(frozen=True)
class _Replicas:
    """One optimizer's parameters that are replicas on these ranks: `which`, their numbers."""

    ranks: tuple[int, ...]
    which: tuple[int, ...]
    facts: Mapping[int, dict[str, Any]]  # by rank: the record parameters
    turns: Mapping[int, Mapping[int, dict[str, Any]]]  # the records replicas of all ranks, by turn and rank
    wrapped: bool
    calls: bool  # whether the script calls collectives of its own

    def differing(self, turn: int, what: str) -> list[int]:
        """Numbers of the parameters that are not the same on all ranks: "grads", "before" or "after" that step."""
        rows = [self.turns[turn][rank][what] for rank in self.ranks]
        return _differing(rows, self.which)

    def named(self, numbers: Sequence[int]) -> str:
        listed = [self.facts[self.ranks[0]]["names"][number] for number in numbers]
        more = f", ... ({len(listed)} of {counted(len(self.which), 'parameter')})" if len(listed) > _SHOWN else ""
        return ", ".join(listed[:_SHOWN]) + more


def _differing(rows: Sequence[Checksums], which: Sequence[int]) -> list[int]:
    seen = {n: {row[n] for row in rows if row[n] is not None} for n in which}
    return [n for n, sums in seen.items() if len(sums) > 1]


def check_replicas(evidence: Evidence) -> Iterator[Finding]:
    """The first step at which they differ, and what made them."""
    for replicas in _all_replicas(evidence):
        yield from _judged(evidence, replicas)


def _judged(evidence: Evidence, replicas: _Replicas) -> Iterator[Finding]:
    earlier: Mapping[int, Checksums] = {rank: facts["made"] for rank, facts in replicas.facts.items()}
    when = "when the wrapper was made"
    for turn, rows in replicas.turns.items():
        step = rows[replicas.ranks[0]]["step"] + 1
        if numbers := replicas.differing(turn, "before"):
            yield _drifted(replicas, numbers, earlier, {rank: row["before"] for rank, row in rows.items()}, when, step)
            return
        if numbers := replicas.differing(turn, "after"):
            own = replicas.differing(turn, "grads")
            yield _unsynchronised(replicas, own, step) if own else _stepped(evidence, replicas, numbers, step)
            return
        earlier, when = {rank: row["after"] for rank, row in rows.items()}, f"after step {step}"


def _drifted(
    replicas: _Replicas,
    numbers: list[int],
    earlier: Mapping[int, Checksums],
    now: Mapping[int, Checksums],
    when: str,
    step: int,
) -> Finding:
    known = {rank: earlier[rank][numbers[0]] for rank in replicas.ranks}
    were_equal = None not in known.values() and len(set(known.values())) == 1
    changed = tuple(r for r in replicas.ranks if any(earlier[r][n] != now[r][n] for n in numbers)) if were_equal else ()
    about = changed if 0 < len(changed) < len(replicas.ranks) else ()
    where = f"{names(replicas.ranks)} hold different values of {replicas.named(numbers)} before step {step}"
    if about:
        seen = f"{where}; {when} they were equal, and {names(about)} changed them since"
        fix = (
            "look for code that writes to parameters under a condition that depends on the rank: an `if rank == ...`, "
        )
        fix += "a checkpoint that one rank loads, weights that are initialised after the wrapper was made"
    elif were_equal:
        seen = f"{where}; {when} they were equal, and every rank has changed its own since"
        fix = "look for code that writes to parameters with values of the rank's own: an initialisation with a seed of "
        fix += "each rank after the wrapper was made, or optimizer steps that only some ranks make"
    else:
        seen = f"{where}, the first that was looked at, though their gradients are averaged"
        fix = "give all ranks the same start: DistributedDataParallel without init_sync=False, or "
        fix += "dist.broadcast(parameter, 0) of each parameter, or the same checkpoint on all ranks"
    return Finding("drifted replicas", seen, _NEVER_REPAIRED, fix, about, numbers={"step": step, "ranks": about})


def _unsynchronised(replicas: _Replicas, numbers: list[int], step: int) -> Finding:
    rows = [row for turn in replicas.turns.values() for row in turn.values()]
    forwards, unsynced = (sum(row[what] for row in rows) for what in ("forwards", "unsynced"))
    if not replicas.wrapped:
        calls = "the script's own collectives did not make them equal" if replicas.calls else "nothing averages them: "
        calls += "" if replicas.calls else "no collective and no DistributedDataParallel of theirs was seen"
        fix = (
            "model = DistributedDataParallel(model), whose forward pass is then the one to call, also for a loss with "
        )
        fix += "parameters of its own; or all-reduce every gradient before optimizer.step()"
    elif not forwards:
        calls = "no forward pass went through the wrapper, which averages gradients of its own passes only"
        fix = "call the wrapper, ddp(inputs), and not ddp.module(inputs) or the model that it was made of"
    elif unsynced == forwards:
        calls = f"all {forwards} forward passes of the wrapper were inside no_sync()"
        fix = "leave no_sync() for the last micro-batch before optimizer.step(): its forward pass counts too"
    else:
        calls = "the wrapper was called, but what gave these gradients did not go through it"
        fix = "call the wrapper, ddp(inputs), in every pass whose gradients are stepped with"
    return Finding(
        "unsynchronised",
        f"{names(replicas.ranks)} stepped with gradients of their own at step {step}: those of "
        f"{replicas.named(numbers)} differ between them; {calls}",
        _NEVER_REPAIRED,
        f"{fix}. If ranks are to differ for some steps (local SGD), all is well",
        numbers={"step": step, "parameters": len(numbers)},
    )


def _stepped(evidence: Evidence, replicas: _Replicas, numbers: list[int], step: int) -> Finding:
    steps = {rank: evidence.ranks[rank].of("step") for rank in replicas.ranks}
    rates = {rank: rows[step - 1]["lr"] for rank, rows in steps.items() if len(rows) >= step}
    differ = len(set(rates.values())) > 1
    how = f": the learning rates are {', '.join(f'{lr:g} on rank {r}' for r, lr in rates.items())}" if differ else ""
    return Finding(
        "drifted replicas",
        f"{names(replicas.ranks)} hold different values of {replicas.named(numbers)} after step {step}, though "
        f"parameters and gradients were equal before it{how}",
        _NEVER_REPAIRED,
        "give the optimizer of every rank the same settings and the same state: a schedule or a checkpoint that "
        "depends on the rank changes them",
        numbers={"step": step, "ranks": ()},
    )


def check_same_work(evidence: Evidence) -> Iterator[Finding]:
    """Ranks whose gradients, before any averaging, have the same bits in all early steps."""
    groups = dict.fromkeys(replicas.ranks for replicas in _all_replicas(evidence))
    if any(finding.check == "duplicates" for finding in feed.check(evidence)):
        return  # which says why
    for group in groups:
        shares = {rank: evidence.ranks[rank].of("share") for rank in group}
        steps = set.intersection(*({row["step"] for row in rows} for rows in shares.values()))
        if len(steps) < _ENOUGH:
            continue
        alike: dict[str, list[int]] = {}
        for rank, rows in shares.items():
            alike.setdefault(str([row["sums"] for row in rows if row["step"] in steps]), []).append(rank)
        for ranks in alike.values():
            if len(ranks) > 1:
                yield _same_work(ranks, len(steps))


_ENOUGH = 3  # steps


def _same_work(ranks: list[int], steps: int) -> Finding:
    return Finding(
        "same work",
        f"{names(ranks)} computed the same gradients, bit for bit, in all of {counted(steps, 'early step')}, before "
        "anything averaged them",
        "ranks that compute the same gradients from the same samples could as well be one: the mean has fewer distinct "
        "samples than the batch size says. Whether that is meant cannot be seen from outside",
        "give each rank samples of its own: a DistributedSampler, or torch.manual_seed(seed + rank) for what draws the "
        "samples (the model's own seed stays the same on all ranks)",
        tuple(ranks),
        numbers={"steps": steps},
    )


def not_judged(evidence: Evidence) -> Iterator[str]:
    """Jobs whose parameters are no replicas, as far as can be seen."""
    if evidence.world < 2 or not evidence.complete or _all_replicas(evidence):
        return
    rows = [row for records in evidence.ranks.values() for row in records.of("parameters")]
    if rows and not all(row["plain"] for row in rows):
        yield "replicas: parameters are shards, which ranks do not have in common"
    else:
        yield "replicas: ranks do not hold the same parameters, and no DistributedDataParallel says that they should"


def _all_replicas(evidence: Evidence) -> list[_Replicas]:
    if evidence.world < 2 or len(evidence.ranks) < evidence.world:
        return []
    optimizers = {row["optimizer"] for records in evidence.ranks.values() for row in records.of("parameters")}
    return [replicas for number in sorted(optimizers) for replicas in _of_optimizer(evidence, number)]


def _of_optimizer(evidence: Evidence, number: int) -> Iterator[_Replicas]:
    """By the ranks that a wrapper averages over; then those that are in no wrapper."""
    every = {
        rank: next((row for row in records.of("parameters") if row["optimizer"] == number), None)
        for rank, records in evidence.ranks.items()
    }
    facts = {rank: row for rank, row in every.items() if row is not None and row["plain"]}
    groups = {group for row in facts.values() for group in row["group"] if group not in ("", "ignored")}
    world = ",".join(map(str, range(evidence.world)))
    for group in sorted(groups):
        found = _on_ranks(evidence, number, facts, tuple(map(int, group.split(","))), group)
        if found:
            yield found
    calls = [row for records in evidence.ranks.values() for row in records.of("call")]
    if groups - {world} or any(row["group"] not in ("", world) for row in calls):
        return  # ranks of a smaller group may hold parts of a model
    found = _on_ranks(evidence, number, facts, tuple(range(evidence.world)), "")
    if found and (groups or _are_replicas(found)):
        yield found


def _on_ranks(
    evidence: Evidence, number: int, facts: Mapping[int, dict[str, Any]], ranks: tuple[int, ...], group: str
) -> _Replicas | None:
    """None where these ranks have not the same parameters, or have not made a step that was looked at."""
    own = {rank: facts[rank] for rank in ranks if rank in facts}
    same = {str([row["shapes"], row["group"]]) for row in own.values()}
    if len(ranks) < 2 or len(own) < len(ranks) or len(same) > 1:
        return None
    turns: dict[int, dict[int, dict[str, Any]]] = {}
    for rank in ranks:
        for row in evidence.ranks[rank].of("replicas"):
            if row["optimizer"] == number:
                turns.setdefault(row["turn"], {})[rank] = row
    turns = {turn: rows for turn, rows in sorted(turns.items()) if len(rows) == len(ranks)}
    which = tuple(n for n, of in enumerate(own[ranks[0]]["group"]) if of == group)
    if not turns or not which:
        return None
    calls = any(evidence.ranks[rank].of("call") for rank in ranks)
    return _Replicas(ranks, which, own, turns, bool(group), calls)


def _are_replicas(found: _Replicas) -> bool:
    """Without a wrapper: equal before the first step, constants aside, or stepped with equal gradients."""
    first = next(iter(found.turns))
    varied = [n for n in found.which if found.facts[found.ranks[0]]["varied"][n]]
    if first == 0 and varied and not found.differing(0, "before"):
        return True
    grads = [found.turns[turn][found.ranks[0]]["grads"] for turn in found.turns]
    some = any(row[n] is not None for row in grads for n in found.which)
    return some and bool(varied) and not any(found.differing(turn, "grads") for turn in found.turns)
