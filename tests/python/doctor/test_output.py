"""ringdp/doctor/output.py: what ranks have said is not hidden by torchrun's account of it."""

from __future__ import annotations

from ringdp.doctor.output import last_lines

# As torch 2.13 prints it, shortened.
RANKS = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/home/me/train.py", line 4, in <module>',
    "[rank1]: RuntimeError: bad sample",
]
LOGGED = "E1123 09:51:32.59 13257 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)"
TORCHRUN = [
    "Traceback (most recent call last):",
    '  File "/v/site-packages/torch/distributed/run.py", line 1028, in main',
    '  File "/v/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    *["  rank      : 0 (local_rank: 0)"] * 100,
]


def said(*lines):
    return last_lines("\n".join(lines))


def test_ranks_come_before_torchrun_whatever_its_length():
    shown = said(*RANKS[:1], LOGGED, *RANKS[1:], *TORCHRUN)
    assert shown[:3] == RANKS
    assert set(shown[3:]) == {TORCHRUN[-1]}  # its last lines


def test_a_short_end_is_shown_whole():
    assert said("step 1", LOGGED, *RANKS, *TORCHRUN[:4]) == ["step 1", *RANKS, LOGGED, *TORCHRUN[:4]]


def test_without_torchrun_the_last_lines_are_shown_as_they_are():
    lines = ["Traceback (most recent call last):", *map(str, range(1000))]
    shown = said(*lines)
    assert shown == lines[-len(shown) :] and len(shown) < 100
    assert said() == []
