"""Common statements about data-parallel training that do not hold: what does, and its number computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ringdp.planner import errata_checks as checks
from ringdp.planner.answer import Answer, Figure, Table
from ringdp.planner.kind import Input, InputError, Kind


@dataclass(frozen=True)
class Erratum:
    """compute: the corrected number's figures; how: where they come from."""

    number: str
    claimed: str
    holds: str
    how: str
    compute: Callable[[], dict[str, Any]]


ERRATA = (
    Erratum(
        "E1",
        "a ring cuts 2 elements into 4 chunks",
        "chunks of 0 elements raise; a ring must take any length",
        "the real ring sums 2 elements on 4 ranks",
        checks.short_gradient,
    ),
    Erratum(
        "E2",
        "the receiver adds to the chunk before the one sent",
        "it adds to the chunk that was sent",
        "both loops played on the worked example",
        checks.receiving_chunk,
    ),
    Erratum(
        "E3",
        "the mean gradient is compared with a big batch of data drawn again",
        "keep the shards: only the same data gives the same gradient",
        "4 ranks of 8 samples, both ways",
        checks.same_data,
    ),
    Erratum(
        "E4",
        "after the reduce-scatter rank 0 owns d, 1 a, 2 b, 3 c",
        "rank r owns chunk (r+1) mod N",
        "the real ring's events",
        checks.ownership,
    ),
    Erratum(
        "E5",
        "143 TB through a server at 400 GB/s take an hour; both directions are counted",
        "143 TB are one direction; minutes",
        "comm --params 70B --ranks 1024 --bandwidth 400GB/s",
        checks.server_seconds,
    ),
    Erratum(
        "E6",
        "averaging N gradients lowers the variance by sqrt(N)",
        "the variance by N, the standard deviation by sqrt(N)",
        "all outcomes of 4 coins",
        checks.variance_of_a_mean,
    ),
    Erratum(
        "E7",
        "70B on 1024 ranks is bound by communication, 70M by compute",
        "parameters cancel: it depends on tokens per rank",
        "step of both sizes; break-even",
        checks.break_even_of_sizes,
    ),
    Erratum(
        "E8",
        "a 7B model has hundreds of thousands of parameter tensors",
        "about 300",
        "counted by layer",
        checks.parameter_tensors,
    ),
    Erratum(
        "E9",
        "DDP compares checksums of parameters when it is built",
        "it compares shapes and counts, then takes rank 0's values",
        "what torch does when DDP is built, by two threads over gloo",
        checks.replicas_of_two,
    ),
    Erratum(
        "E10",
        "NDR InfiniBand carries 400 GB/s",
        "a port carries 400 Gb/s; 400 GB/s are a node with 8 ports",
        "units; a bandwidth without one is refused",
        checks.ports,
    ),
    Erratum(
        "E11",
        "main prints a loss that its step function never returns",
        "the step returns it",
        "both scripts, run",
        checks.returned_loss,
    ),
    Erratum(
        "E12",
        "the gradients computed last fill the first bucket",
        "those computed first do, of the last layers",
        "the reducer's layout of 6 layers",
        checks.first_bucket,
    ),
    Erratum(
        "E13",
        "the mean of the ranks' means is the global mean",
        "only when shards have equal sizes; else weight them",
        "shards of 3 and 1",
        checks.unequal_means,
    ),
    Erratum(
        "E14",
        "losses that differ between ranks show dropout seeded alike",
        "they differ anyway, with the data; look for identical masks",
        "masks of two ranks",
        checks.dropout_masks,
    ),
    Erratum(
        "E15",
        "FP8 instead of BF16 saves 70 GB per rank on the wire",
        "70 GB is the buffer; a ring sends 2(N-1)/N of it",
        "comm --wire bf16 and fp8",
        checks.fp8_saving,
    ),
    Erratum(
        "E16",
        "volumes of ZeRO are P and 2P bytes",
        "they are elements; bytes depend on the type on the wire",
        "volume --params 1",
        checks.bytes_of_elements,
    ),
    Erratum(
        "E17",
        "2048 ranks have 512 tokens each of the same batch",
        "that is an eighth of a sequence: impossible with whole ones",
        "step --ranks 2048 --global-tokens 1048576 --seq 4096",
        checks.part_of_a_sequence,
    ),
    Erratum(
        "E18",
        "ZeRO sends 2P and 3P per step",
        "per micro-batch; K of them make stage 3 gather 2K P and stage 2 reduce-scatter K P",
        "volume --micro-batches 4",
        checks.micro_batch_volume,
    ),
)
_NUMBERS = [erratum.number for erratum in ERRATA]


def errata(number: str | None) -> Answer:
    """All of them, or one; each corrected number is computed now."""
    if number is not None and number not in _NUMBERS:
        raise InputError(f"--number '{number}' is none of {_NUMBERS[0]} to {_NUMBERS[-1]}")
    chosen = [erratum for erratum in ERRATA if number in (None, erratum.number)]
    figures, rows, lacking = [], [], []
    for erratum in chosen:
        try:
            found = erratum.compute()
        except (ImportError, InputError) as error:  # no torch, no numpy, no extension
            found = None
            lacking.append(f"{erratum.number} is not computed here: {error}")
        figures.append(Figure(erratum.number, found, "", erratum.how))
        rows.append((erratum.number, erratum.claimed, erratum.holds))
    columns = (("erratum", ""), ("claimed", ""), ("holds", ""))
    return Answer(tuple(figures), (Table("errata", columns, tuple(rows)),), warnings=tuple(lacking))


KINDS = (
    Kind(
        "errata",
        "common statements that do not hold, corrected",
        (Input("number", str, "one of E1 to E18", ""),),
        errata,
        "errata --number E7",
    ),
)
