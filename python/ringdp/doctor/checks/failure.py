"""A job that fails or hangs: which rank said what, and where the others were (F2)."""

from __future__ import annotations

from collections.abc import Iterator

from ringdp.attach.finding import Finding, names
from ringdp.attach.records import RankRecords
from ringdp.doctor.evidence import Evidence

HANGS = "hangs"
_SHOWN = 400


def check(evidence: Evidence) -> Iterator[Finding]:
    """The first error, the place at which each rank stands, or that the job has ended badly without a word."""
    errors = {rank: records.of("error")[0] for rank, records in evidence.ranks.items() if records.of("error")}
    if errors:
        rank, error = next(iter(errors.items()))
        others = f" ({names(r for r in errors if r != rank)} failed too)" if len(errors) > 1 else ""
        yield Finding(
            "failed",
            f"rank {rank} ended with {error['type']}{others}: {error['message'][:_SHOWN]}",
            "a group whose ranks disagree or die cannot go on",
            "the first line names what to look at; ranks whose buffers differ in size often have unequal last batches: "
            "drop_last=True, equal shards",
            tuple(errors),
            numbers={"type": error["type"]},
        )
    elif evidence.stopped == HANGS:
        places = "; ".join(f"rank {rank}: {_place(evidence, r)}" for rank, r in evidence.ranks.items())
        yield Finding(
            "hang",
            f"no rank has come any further: {places}",
            "ranks wait for one another in calls that do not match",
            "give all ranks the same calls in the same order, and equally many batches of equal sizes; if the job was "
            "only slow (it compiles, it loads), a longer --timeout",
            numbers={"steps": {rank: len(r.of("step")) for rank, r in evidence.ranks.items()}},
        )
    elif evidence.status and not evidence.stopped:
        how = f"status {evidence.status}" if evidence.status > 0 else f"signal {-evidence.status}"
        yield Finding(
            "failed",
            f"the job ended with {how} after {evidence.steps} steps, and no rank has written down an exception",
            "a rank that is killed or leaves by os._exit() ends the training of all",
            "the job's last lines of output, on standard error, name who it was; status 137 and signal 9 are often the "
            "system's, short of memory: dmesg says so",
            numbers={"status": evidence.status, "steps": evidence.steps},
        )


def _place(evidence: Evidence, records: RankRecords) -> str:
    done = {row["number"] for row in records.of("back")}
    open_calls = [row for row in records.of("call") if row["number"] not in done]
    said = f"after {len(records.of('step'))} steps"
    if open_calls:
        call = open_calls[-1]
        said += f" in {call['op']} of {call['count']} elements on ranks {call['group']}"
    stack = evidence.stacks.get(records.rank)
    return f"{said}, at {stack}" if stack else said
