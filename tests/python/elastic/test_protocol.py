"""The step of `ringdp.elastic.survive` as a model: every order of events, with a crash at each of them.

A rank computes its leaves and posts them, has the mean once all members have posted, votes, and applies the step once
all members have voted. Whoever sees that a member is gone leaves the world; when all that live have left it, they meet
in the next one, with a newcomer where there is one, and catch up. What a rank has posted or voted reaches the others
even if it dies right after. With shards in shared memory the shards of those that have died catch up as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

COMPUTES, POSTED, VOTED = range(3)


@dataclass(frozen=True)
class Rank:
    """applied: steps. mean_of: the step whose mean it has, -1 without one."""

    applied: int = 0
    phase: int = COMPUTES
    mean_of: int = -1
    is_alive: bool = True
    has_left: bool = False


@dataclass(frozen=True)
class State:
    """posted, voted: (step, rank) of the current world. crashes, joins: still to come. shards: in shared memory."""

    ranks: tuple[Rank, ...]
    members: frozenset[int]
    crashes: int
    joins: int
    posted: frozenset[tuple[int, int]] = frozenset()
    voted: frozenset[tuple[int, int]] = frozenset()
    shards: bool = False

    def alive(self) -> list[int]:
        return [rank for rank in self.members if self.ranks[rank].is_alive]

    def is_broken(self) -> bool:
        return any(not self.ranks[rank].is_alive or self.ranks[rank].has_left for rank in self.members)

    def set(self, number: int, rank: Rank, **changes: object) -> State:
        ranks = (*self.ranks[:number], rank, *self.ranks[number + 1 :])
        return replace(self, ranks=ranks, **changes)


class Violated(Exception):
    """A rank lacks a step, and the mean of it."""


def following(state: State, steps: int, *, votes: bool) -> Iterator[State]:
    """What may happen next."""
    for number in state.alive():
        rank = state.ranks[number]
        if state.crashes and len(state.alive()) > 1:
            yield state.set(number, replace(rank, is_alive=False), crashes=state.crashes - 1)
        if rank.has_left:
            continue
        if state.is_broken():
            yield state.set(number, replace(rank, has_left=True))
        own = (rank.applied, number)
        if rank.applied == steps:
            continue
        if rank.phase == COMPUTES:
            yield state.set(number, replace(rank, phase=POSTED), posted=state.posted | {own})
        elif rank.phase == POSTED and all((rank.applied, other) in state.posted for other in state.members):
            if votes:
                has_mean = replace(rank, phase=VOTED, mean_of=rank.applied)
                yield state.set(number, has_mean, voted=state.voted | {own})
            else:
                yield state.set(number, Rank(rank.applied + 1))
        elif rank.phase == VOTED and all((rank.applied, other) in state.voted for other in state.members):
            yield state.set(number, Rank(rank.applied + 1))
    if state.is_broken() and all(state.ranks[number].has_left for number in state.alive()):
        yield next_world(state)


def next_world(state: State) -> State:
    """Violated, unless everybody can catch up."""
    alive = state.alive()
    concerned = state.members if state.shards else alive
    ahead = max(state.ranks[number].applied for number in concerned)
    ranks = list(state.ranks)
    for number in concerned:
        rank = ranks[number]
        if rank.applied < ahead and not rank.applied == rank.mean_of == ahead - 1:
            raise Violated(
                f"rank {number} has applied {rank.applied} steps of {ahead}, and has the mean of {rank.mean_of}"
            )
        ranks[number] = Rank(ahead, is_alive=rank.is_alive)
    members, joins = frozenset(alive), state.joins
    if joins:
        ranks.append(Rank(ahead))  # with the state of a rank that is ahead
        members, joins = members | {len(ranks) - 1}, joins - 1
    return State(tuple(ranks), members, state.crashes, joins, shards=state.shards)


def explore(
    ranks: int, steps: int, crashes: int, joins: int, *, votes: bool = True, shards: bool = False
) -> tuple[int, int]:
    """How many states there are, and in how many a rank was behind. Violated; AssertionError: nothing can happen."""
    first = State(tuple(Rank() for _ in range(ranks)), frozenset(range(ranks)), crashes, joins, shards=shards)
    seen, todo, behind = {first}, deque([first]), 0
    while todo:
        state = todo.popleft()
        counts = {state.ranks[number].applied for number in state.alive()}
        assert max(counts) - min(counts) <= 1
        behind += len(counts) > 1
        options = list(following(state, steps, votes=votes))
        assert options or counts == {steps}, f"nothing can happen: {state}"
        new = set(options) - seen
        seen |= new
        todo.extend(new)
    return len(seen), behind


@pytest.mark.parametrize(
    ("ranks", "steps", "crashes", "joins"), [(2, 3, 1, 1), (2, 2, 2, 2), (3, 2, 2, 1), (4, 2, 1, 0), (4, 1, 2, 0)]
)
@pytest.mark.parametrize("shards", [False, True])
def test_members_differ_by_a_step_at_most_and_who_is_behind_has_its_mean(ranks, steps, crashes, joins, shards):
    states, behind = explore(ranks, steps, crashes, joins, shards=shards)
    assert states > 100 and behind > 10


@pytest.mark.parametrize("shards", [False, True])
def test_without_the_vote_they_do_not(shards):
    with pytest.raises(Violated, match="has applied 0 steps of 1, and has the mean of -1"):
        explore(3, 2, 1, 0, votes=False, shards=shards)
