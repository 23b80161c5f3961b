"""Runs candidates against each other: each of them once per round, in shuffled order, on fresh data that is checked.

A candidate is one way to run a collective, or a limit. Its processes are a team; a coordinator gives one team the turn
at a time and the others sleep in the kernel, so that MPI ranks, torch ranks and the limits share the same rounds.
"""
