"""A job that fails or hangs: the error of each rank, and where the others were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ringdp.text.units import agreeing, counted, names
from ringdp.tools.attach.finding import Finding
from ringdp.tools.attach.records import RankRecords
from ringdp.tools.doctor.evidence import Evidence

HANGS = "hangs"
_SHOWN = 400
# What a rank raises when another one has failed or left: ringdp's kinds of error, and gloo's messages.
_FOLLOWS = ("PeerLost:", "Aborted:", "Connection closed by peer", "Connection reset by peer")
_ADVICE = {
    "Mismatch": "look for an `if rank == ...` around calls; ranks whose buffers differ in size often have unequal last "
    "batches: drop_last=True, equal shards",
    "PeerLost": "a rank that died says why in its last lines of output, on standard error; one that left in good order "
    "came to the end of its loop earlier: give all ranks equally many batches",
    "Timeout": "look at the rank that has not called: its own error, its loop, its loader; if it is only slow, raise "
    "the timeout of the process group",
    "InvalidArgument": "mend that call: the message says what is accepted",
}
_SAME_CALLS = "give all ranks the same calls in the same order, and equally many batches of equal sizes"
_HELD = "a lock, a loader or a file system that hangs"
_SLOW = "if the job was only slow (it compiles, it loads), a longer --timeout"
_OWN = "mend that line: the whole traceback is in the job's output, on standard error"


def check(evidence: Evidence) -> Iterator[Finding]:
    """The first error, the place at which each rank hangs, or that the job has failed without a message."""
    errors = {rank: records.of("error")[0] for rank, records in evidence.ranks.items() if records.of("error")}
    silent = evidence.died is not None and evidence.died[0] not in errors
    if errors and not (silent and all(_follows(error) for error in errors.values())):
        yield _failed(errors)
    elif evidence.stopped == HANGS:
        yield _hang(evidence)
    elif evidence.status and not evidence.stopped:
        how = f"status {evidence.status}" if evidence.status > 0 else f"signal {-evidence.status}"
        who, how = ("the job", how) if evidence.died is None else (f"rank {evidence.died[0]}", evidence.died[1])
        others = f" ({names(errors)} failed because of it)" if errors else ""
        yield Finding(
            "failed",
            f"{who} ended with {how} after {counted(evidence.steps, 'step')}, without a word of an exception{others}",
            "a rank that is killed or leaves by os._exit() ends the training of all",
            "the job's last lines of output, on standard error, name who it was; status 137 and signal 9 are often the "
            "system's, short of memory: dmesg says so",
            () if evidence.died is None else (evidence.died[0],),
            numbers={"status": evidence.status, "steps": evidence.steps},
        )


def _follows(error: Mapping[str, Any]) -> bool:
    return any(word in error["message"] for word in _FOLLOWS)


def _failed(errors: Mapping[int, dict[str, Any]]) -> Finding:
    """Errors that only report another rank's failure come last; of the rest the earliest is the cause."""
    rank = min(errors, key=lambda r: (_follows(errors[r]), errors[r]["time"]))
    error = errors[rank]
    place = f" at {error['place']}" if error["place"] else ""
    others = f" ({names(r for r in errors if r != rank)} failed too)" if len(errors) > 1 else ""
    return Finding(
        "failed",
        f"rank {rank} ended with {error['type']}{place}{others}: {error['message'][:_SHOWN]}",
        "a group whose ranks disagree or die cannot go on",
        _ADVICE.get(error["message"].partition(":")[0], _OWN),
        tuple(errors),
        numbers={"type": error["type"], "rank": rank},
    )


def _hang(evidence: Evidence) -> Finding:
    """The others wait for ranks that are in their own code; when all ranks wait, their calls do not match."""
    calls = {rank: _call(evidence, records) for rank, records in evidence.ranks.items()}
    waiting = [rank for rank, call in calls.items() if call]
    standing = [rank for rank, call in calls.items() if not call and rank in evidence.stacks]
    seen = f"no rank has come any further: {_places(evidence, calls)}"
    about: tuple[int, ...] = ()
    if len(waiting) + len(standing) < evidence.world:
        why, fix = "a rank waits for others, or for something outside of the job", f"look at these lines; {_SAME_CALLS}"
    elif not standing:
        why, fix = "ranks wait for one another in calls that do not match", _SAME_CALLS
    elif not waiting:
        why, fix = "every rank stands in code of its own, and waits for no other", f"look at these lines: {_HELD}"
    else:
        idle = min((evidence.idle[rank] for rank in standing if rank in evidence.idle), default=0.0)
        late = f"{names(standing)} {agreeing(standing, 'has', 'have')} not called for {idle:.0f} s"
        wait = f"{names(waiting)} {agreeing(waiting, 'waits', 'wait')} for {agreeing(standing, 'it', 'them')}"
        seen, about = f"{late} ({_where(evidence, standing)}); {wait} ({_where(evidence, waiting)})", tuple(standing)
        why = "a collective ends when every rank has called it"
        do = agreeing(standing, "does", "do")
        fix = f"look at what {names(standing)} {do} there: {_HELD}, work that only some have"
    numbers = {"steps": {rank: len(r.of("step")) for rank, r in evidence.ranks.items()}}
    return Finding("hang", seen, why, f"{fix}; {_SLOW}", about, numbers=numbers)


def _open_call(records: RankRecords) -> dict[str, Any] | None:
    done = {row["number"] for row in records.of("back")}
    return next((row for row in reversed(records.of("call")) if row["number"] not in done), None)


def _call(evidence: Evidence, records: RankRecords) -> str:
    """The call in which this rank waits, or '' when it does not wait or that is unknown."""
    stand = evidence.stacks.get(records.rank)
    if stand and stand.stopped:
        return ""
    if call := _open_call(records):
        return call["op"]
    return stand.call if stand else ""


def _where(evidence: Evidence, ranks: list[int]) -> str:
    """Where these ranks are, without the name of a single one, which the sentence has just named."""
    return _place(evidence, evidence.ranks[ranks[0]]) if len(ranks) == 1 else _places(evidence, ranks)


def _places(evidence: Evidence, ranks: Iterable[int]) -> str:
    return "; ".join(f"rank {rank}: {_place(evidence, evidence.ranks[rank])}" for rank in ranks)


def _place(evidence: Evidence, records: RankRecords) -> str:
    said = f"after {counted(len(records.of('step')), 'step')}"
    stand = evidence.stacks.get(records.rank)
    if call := _open_call(records):
        said += f" in {call['op']} of {counted(call['count'], 'element')} on ranks {call['group']}"
    elif stand and stand.call:
        said += f" in {stand.call}"
    if stand and stand.stopped:
        return f"{said}, its process is stopped by a signal"
    return f"{said}, at {stand.line}" if stand else said
