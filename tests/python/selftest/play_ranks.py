"""Ranks that misbehave, for the supervisor's tests: a module of its own, so that processes can import it."""

from __future__ import annotations

import os
import time

import torch
from ringdp.selftest import calls, oracle, rank
from ringdp.selftest.rank import EXACT, Verdict


def good(pipe, number, assignment):
    for transport in assignment.transports:
        for case in range(len(assignment.cases)):
            pipe.send((transport, case, Verdict(EXACT)))
    pipe.send(None)


def rank_1_dies(pipe, number, assignment):
    if number != 1:
        return good(pipe, number, assignment)
    pipe.send((assignment.transports[0], 0, Verdict(EXACT)))
    os._exit(7)


def rank_1_hangs(pipe, number, assignment):
    if number != 1:
        return good(pipe, number, assignment)
    while True:
        time.sleep(60)


def with_a_wrong_oracle(pipe, number, assignment):
    """The real rank, whose oracle adds one in the last element of every sum."""

    def wrong(inputs: list[torch.Tensor], reduce: str) -> torch.Tensor:
        result = oracle.fold(inputs, reduce)
        result[-1:] += 1
        return result

    calls.fold = wrong
    rank.main(pipe, number, assignment)
