"""An audit of micro-batches (leaves): real steps of ranks, healthy ones without a finding, and planted faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from play import checks, only, records_by_rank
from ringdp.tools.feed.hooks import unwatch, watch_everything
from ringdp.tools.feed.judge import Report, judge, report_from, verdict

SCRIPT = Path(__file__).parents[2] / "cli" / "leaf_script.py"


def watched(how: str, fault: str, micro_batches: int) -> list[dict[str, Any]]:
    """On a rank: what was written down, also where the wrapper itself has found the fault."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("leaf_script", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    rows: list[dict[str, Any]] = []
    watcher = watch_everything(rows.append, epochs=3)
    try:
        script.train(how, fault, micro_batches)
    except RuntimeError as error:
        assert "micro_batches" in str(error)
    finally:
        unwatch(watcher)
    assert not watcher.failed
    return rows


def audited(world: Any, how: str, fault: str, micro_batches: int = 8) -> Report:
    report = judge(records_by_rank(dict(enumerate(world.run(watched, how, fault, micro_batches)))))
    assert report_from(report.as_dict()) == report
    return report


@pytest.mark.parametrize("how", ["loader", "indices"])
def test_healthy_steps_have_no_finding(world_of, how):
    for ranks, micro_batches in ((2, 8), (3, 8), (3, 2)):
        for fault in ("", "dropped", "clipped"):
            report = audited(world_of(ranks), how, fault, micro_batches)
            assert (report.findings, report.not_judged) == ((), ()), (ranks, micro_batches, fault)
            steps = 2 * 52 // (2 * micro_batches) if fault == "" else 2 * (52 // (2 * micro_batches))
            assert report.leaf_steps == steps
            assert verdict(report).startswith(f"no problems in {steps} steps of micro-batches")
            if how == "loader":
                drawn = [(row.drawn, row.repeated, row.missing) for row in report.rows]
                assert sum(n for n, _, _ in drawn) == steps * 2 * micro_batches and {d[1:] for d in drawn} == {(0, 0)}


FAULTS = [
    ("twice", ["leaf twice"], "step 0: leaf 0 was run by ranks 0, 1", (0, 1)),
    ("missing", ["leaf missing"], "step 0: no rank has run leaf 4 of 8", ()),
    ("seed", ["leaf seed"], "rank 0: 0; rank 1: 7", (1,)),
    ("order", ["leaves differ"], "Leaves of rank 1 has seed=5, that of the others seed=0", (1,)),
    ("again", ["leaf step"], "ringdp.leaf was given steps 0, 1, 2 more than once", ()),
    ("swapped", ["leaf samples"], "step 0: rank 1 ran leaf 7 on the samples of leaf 4 of step 0 of epoch 0", (1,)),
]


@pytest.mark.parametrize("how", ["loader", "indices"])
@pytest.mark.parametrize(("fault", "found", "seen", "ranks"), FAULTS)
def test_faults_are_named(pair, how, fault, found, seen, ranks):
    report = audited(pair, how, fault)
    assert [name for name in checks(report) if name in found] == found, report.findings
    finding = only(report, found[0])
    assert seen in finding.seen and finding.ranks == ranks, finding


@pytest.mark.parametrize(
    ("how", "fault", "check", "seen"),
    [
        ("loader", "rank", "duplicates", "Leaves by rank: rank 0: 0, 1, 2, 3; rank 1: 0, 1, 2, 3"),
        ("loader", "stale", "stale epoch", "different epochs (rank 0 at 1, rank 1 at 0)"),
        ("indices", "stale", "leaf samples", "rank 0: step 0 of epoch 1; rank 1: step 0 of epoch 0"),
        ("loader", "forgotten", "stale epoch", "the samples come in the order of epoch 1"),
        ("indices", "forgotten", "samples twice", "the samples of steps 0, 1, 2 of epoch 0 were run more than once"),
    ],
)
def test_samples_of_an_epoch_are_drawn_once(pair, how, fault, check, seen):
    assert seen in only(audited(pair, how, fault), check).seen
