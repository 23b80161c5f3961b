"""What README.md and docs/devices.md say of devices, and which findings of which parts show it.

A claim is shown when every pattern has a finding that passed and none that did not, refuted when one failed, hung or
died, and not reached otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from devices.findings import BAD, PASSED

from .runner import Outcome

SHOWN, REFUTED, NOT_REACHED = VERDICTS = ("shown", "refuted", "not reached")


@dataclass(frozen=True)
class Claim:
    """`page`: where it stands; `by`: (part, what the names of its findings begin with), none where one GPU cannot.

    A claim of README.md is the first cell of a row of its table.
    """

    page: str
    text: str
    by: Sequence[tuple[str, str]] = ()

    @property
    def parts(self) -> list[str]:
        """Of gpu-check, that show it."""
        return list(dict.fromkeys(part for part, _ in self.by))


README, DEVICES = "README.md", "docs/devices.md"
CLAIMS = (
    Claim(
        README,
        "all_reduce, reduce, reduce_scatter",
        (
            ("plans", "test_plans.py::test_sums_have_the_bits_of_the_serial_fold"),
            ("collectives", "test_collectives.py::test_every_reduction_of_every_dtype"),
            ("collectives", "test_collectives.py::test_reductions_of_every_size"),
            ("collectives", "test_collectives.py::test_moves"),
        ),
    ),
    Claim(
        README,
        "broadcast, all_gather, gather, scatter, all_to_all",
        (("plans", "test_plans.py::test_any_type_is_moved"), ("collectives", "test_collectives.py::test_moves")),
    ),
    Claim(
        README,
        "send, recv, batch_isend_irecv, barrier, coalescing manager",
        (
            ("collectives", "test_collectives.py::test_messages"),
            ("streams", "test_streams.py::test_a_graph_is_refused"),  # with a barrier
        ),
    ),
    Claim(
        README, "DistributedDataParallel, ZeRO stages 1 to 3", (("training", "test_training.py::test_training_has"),)
    ),
    Claim(README, "wire types (bf16, fp16, fp8, int8)", (("several-gpus", "test_several_gpus.py::test_wire_types"),)),
    Claim(
        DEVICES,
        "several ranks on one GPU run collectives on the device (STREAM)",
        (("plans-stream", "test_plans.py::"), ("processes", "test_plan_processes.py::"), ("facts", "describe")),
    ),
    Claim(
        DEVICES,
        "ranks with a GPU each run collectives in kernels that poll (SPIN), whichever devices they see",
        (
            ("several-gpus", "test_several_gpus.py::test_kernels_of_processes"),
            ("several-gpus", "test_several_gpus.py::test_processes_that_see_one_gpu_each"),
        ),
    ),
    Claim(
        DEVICES,
        "a process has a context on the device of its tensors alone",
        (("several-gpus", "test_several_gpus.py::test_a_process_has_a_context"),),
    ),
    Claim(
        DEVICES,
        "larger tensors go through the window in pieces, and lists of tensors by copies of each, with the same bits",
        (("pieces", "test_pieces.py::"), ("collectives", "test_collectives.py::test_lists")),
    ),
    Claim(DEVICES, "on several hosts collectives run over NCCL"),
    Claim(
        DEVICES,
        "the sums are the CPU's, bit for bit",
        (
            ("plans", "test_plans.py::test_sums_have_the_bits_of_the_serial_fold"),
            ("processes", "test_plan_processes.py::test_processes_have_the_bits"),
            ("collectives", "test_collectives.py::test_reductions_of_every_size"),
        ),
    ),
    Claim(DEVICES, "ranks map each other's memory by descriptors", (("probe", "share descriptors"),)),
    Claim(DEVICES, "or by legacy CUDA IPC", (("probe", "share legacy IPC"),)),
    Claim(
        DEVICES,
        "after the death of a rank the device can be used, where memory is shared by descriptors",
        (("probe", "killed exporter, descriptors"), ("faults", "test_faults.py::test_a_killed_rank")),
    ),
    Claim(
        DEVICES,
        "dead or stopped ranks and timeouts are named as on the CPU",
        (("plan-faults", "test_plan_faults.py::"), ("faults", "test_faults.py::")),
    ),
    Claim(
        DEVICES,
        "calls are in the order of streams, and tensors live as long as they are used",
        (("streams", "test_streams.py::test_a_call"), ("streams", "test_streams.py::test_t")),
    ),
    Claim(
        DEVICES,
        "calls can be captured into CUDA graphs",
        (("graphs", "test_plan_graphs.py::"), ("streams", "test_streams.py::test_a_graph_is_replayed")),
    ),
    Claim(
        DEVICES,
        "ZeRO's step sums, steps and distributes a bucket in one call, with the same bits",
        (("training", "test_training.py::test_steps_in_one_call"), ("speed", "zero_step by fused step")),
    ),
)


def matching(outcomes: Sequence[Outcome], part: str, prefix: str) -> list[str]:
    """The verdicts of the findings of a pattern."""
    return [
        one.verdict
        for outcome in outcomes
        if outcome.part == part
        for one in outcome.findings
        if one.name.startswith(prefix)
    ]


def verdict_of(claim: Claim, outcomes: Sequence[Outcome]) -> str:
    """SHOWN, REFUTED or NOT_REACHED."""
    verdicts = [matching(outcomes, part, prefix) for part, prefix in claim.by]
    if any(verdict in BAD for found in verdicts for verdict in found):
        return REFUTED
    shown = all(set(found) == {PASSED} for found in verdicts)
    return SHOWN if verdicts and shown else NOT_REACHED
