"""benchmarks/planner.py and scale_model.py from end to end; their rows, formulas, plans as graphs, calibration."""

from __future__ import annotations

import copy
import importlib.util
import json
from dataclasses import asdict, replace
from itertools import pairwise
from xml.etree import ElementTree

import invented
import planner
import pytest
from predictions import MEMORY_HEAD, case, link_bytes, predicted_steps, with_measured, with_peak
from programs import ROOT, read, refusal, run
from ringdp.tools.planner.calibration import load
from ringdp.tools.planner.local_ranks import ProbeJob
from ringdp.tools.planner.prediction import calibrated
from runner.hosts import why_impossible
from scale.calibrate import LARGE, MIDDLE, SEGMENTS, SMALL, alpha_and_beta, fold_cost, gap_between
from scale.compare import compare, plans, port_bytes, rounds, simulator, steps
from scale.costs import (
    ALGORITHMS,
    IN_RANK_ORDER,
    MARGIN,
    SEGMENT,
    SLOT,
    Network,
    Topology,
    candidates,
    cut,
    direct,
    fastest,
    grid,
    load_network,
    reigns,
    save_network,
)
from scale.simulate import COMPUTE, DELAY, WIRE, Graph, platform

TINY = ("--ranks", 2, "--rates", 1, "--steps", 2, "--micro-batch", 8, "--seconds", 1, "--unseen", "mlp/2048/0")


@pytest.fixture
def perfect():
    """Two hosts without a fault on a link of 0.8 Gb/s, and more cores than ranks."""
    return calibrated([invented.report(2)] * 2, ProbeJob("mlp", 8, 2, ()), 64, link_bytes(0.8))


def test_a_perfect_machine_is_predicted(perfect):
    for row in predicted_steps(perfect, (2, 8), (0.8, 4.0)):
        report = invented.report(row.ranks, rate=link_bytes(row.gigabits))
        done = with_measured(row, [report] * row.ranks)
        assert done.step == pytest.approx(row.predicted_step) and not done.wrong
        assert f"{done.ranks} ranks at {row.gigabits:g} Gb/s" in row.prediction


@pytest.mark.parametrize(
    ("step", "memory", "named"),
    [(1.14, 1.02, []), (1.16, 1, ["step is 1.16"]), (0.84, 0.96, ["step is 0.84", "memory is 0.96"])],
)
def test_what_is_beyond_the_bars_is_wrong(perfect, step, memory, named):
    (row,) = predicted_steps(perfect, (4,), (0.8,))
    report = {"step": [step * row.predicted_step], "peak": memory * row.predicted_memory}
    wrong = with_measured(row, [report]).wrong
    assert len(wrong) == len(named) and all(part in said for part, said in zip(named, wrong, strict=True))


def test_memory_beyond_its_bar_is_wrong():
    row = case("gpt/8/1")
    near, far = (with_ratio(row, ratio) for ratio in (1.02, 0.96))
    assert len(str(near)) == len(MEMORY_HEAD)
    assert not near.wrong and "gpt, micro-batch 8, 2 ranks, stage 1: memory is 0.96" in far.wrong[0]


def with_ratio(row, ratio):
    """A case as measured on two ranks, so far from its prediction."""
    return with_peak(replace(row, ranks=2, predicted=100e6), [{"peak": 90e6}, {"peak": ratio * 100e6}])


@pytest.mark.long
def test_two_hosts(tmp_path):
    if reason := why_impossible():
        pytest.skip(reason)
    kept = ("--calibration", tmp_path / "links.json")
    said = run("planner.py", *TINY, "--json", tmp_path / "r.json", "--plot", tmp_path / "r.png", *kept)
    result = read(tmp_path / "r.json")
    (row,) = result["rows"]
    assert said.index("predicted: 2 ranks at 1 Gb/s") < said.index("measured")
    assert row["step"] > 0 and row["memory"] > row["predicted_memory"] / 2
    assert result["calibration"]["bandwidth"] == 125e6
    assert read(tmp_path / "links.json") == result["calibration"]
    assert load(tmp_path / "links.json").bandwidth == 125e6
    (other,) = result["memory_rows"]
    assert other["measured"] == pytest.approx(other["predicted"], rel=0.03)
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--ranks", "1,2"), "at least 2 each"),
        (("--rates", "1,fast"), "invalid list of float value: '1,fast'"),
        (("--micro-batch", 0), "--micro-batch is 0"),
        (("--unseen", "gpt/8"), "invalid list of case value: 'gpt/8'"),
    ],
)
def test_bad_input_is_refused(arguments, named):
    assert named in refusal(planner.parse, *arguments)


# benchmarks/scale_model.py: formulas, crossovers, plans as graphs, calibration, and the program from end to end.

NOTHING = Network(alpha=0, beta=0, gap=0, gamma=0, local_alpha=0, local_beta=0)
FLAT = [Topology(n) for n in (2, 3, 4, 5, 8)]
LAYERED = [Topology(2, 2), Topology(3, 2), Topology(4, 2), Topology(2, 4)]
FEW_BYTES, MANY_BYTES = 4096, 6 << 20


def longest_chain(graph, weight):
    """The weight of the heaviest path, of `weight(node)` each."""
    waits = [node.waits for node in graph.nodes]
    ready = [number for number, left in enumerate(waits) if not left]
    arrival = [0.0] * len(waits)
    done = 0
    for number in ready:
        done += 1
        arrival[number] += weight(graph.nodes[number])
        for after in graph.nodes[number].next:
            arrival[after] = max(arrival[after], arrival[number])
            waits[after] -= 1
            if not waits[after]:
                ready.append(after)
    assert done == len(waits), "steps wait for each other"
    return max(arrival)


def between_hosts(at):
    return lambda node: float(node.kind == DELAY and node.rank // at.local != node.peer // at.local)


def candidate_names(at):
    return list(candidates(at))


@pytest.mark.parametrize("at", FLAT + LAYERED, ids=str)
def test_latency_is_the_longest_chain_of_messages_between_hosts(at):
    for name in candidate_names(at):
        chain = longest_chain(Graph(plans(name, FEW_BYTES, at), at.local), between_hosts(at))
        formula = ALGORITHMS[name](FEW_BYTES, at, replace(NOTHING, alpha=1.0))
        if at.local == 1 or "ring" not in name:
            assert formula == pytest.approx(chain), name
        else:  # the formula takes the average over hops between and within hosts
            assert chain * 0.6 <= formula <= chain * 1.4, name


@pytest.mark.parametrize("at", FLAT + LAYERED, ids=str)
def test_no_formula_is_faster_than_its_busiest_port(at):
    for name in candidate_names(at):
        least = port_bytes(plans(name, MANY_BYTES, at), at)
        formula = ALGORITHMS[name](MANY_BYTES, at, replace(NOTHING, beta=1.0))
        assert least * 0.999 <= formula <= least * 2.1, name


@pytest.mark.parametrize("at", FLAT, ids=str)
def test_where_every_port_is_always_busy_the_formula_is_its_bytes(at):
    for name in ("direct", "exchange", "ring/rotated"):
        size = at.ranks * (SEGMENT // 2)
        least = port_bytes(plans(name, size, at), at)
        assert ALGORITHMS[name](size, at, replace(NOTHING, beta=1.0)) == pytest.approx(least), name


@pytest.mark.parametrize("at", FLAT, ids=str)
def test_gap_counts_the_messages_of_a_port(at):
    recorded = plans("direct", MANY_BYTES, at)
    messages = sum(node.kind == WIRE and node.rank == 0 for node in Graph(recorded, 1).nodes)
    assert ALGORITHMS["direct"](MANY_BYTES, at, replace(NOTHING, gap=1.0)) == messages


def test_textbook_limits_of_the_ring():
    at, net = Topology(16), Network(1e-5, 1e-9, 0, 0, 0, 0)
    small = ALGORITHMS["ring/rotated"](1024, at, net)
    assert small == pytest.approx(2 * 15 * (1e-5 + 1024 / 16 * 1e-9))
    large = 1 << 30
    assert ALGORITHMS["ring/rotated"](large, at, net) == pytest.approx(2 * 15 / 16 * large * 1e-9, rel=0.01)
    assert ALGORITHMS["ring"](large, at, net) == pytest.approx(2 * large * 1e-9, rel=0.02)


@pytest.mark.parametrize("at", FLAT, ids=str)
def test_rounds_recorded_are_those_of_the_textbook(at):
    assert rounds(plans("direct", FEW_BYTES, at)) == 2
    assert rounds(plans("exchange", FEW_BYTES, at)) == 1
    assert rounds(plans("ring", FEW_BYTES, at)) == 2 * (at.ranks - 1)
    assert rounds(plans("ring/rotated", FEW_BYTES, at)) == 2 * (at.ranks - 1)
    assert rounds(plans("tree", FEW_BYTES, at)) == 2 * (at.ranks - 1).bit_length()


def test_times_grow_with_size_and_stay_finite_up_to_16384_ranks():
    net = Network(1e-4, 8e-9, 4e-6, 3e-11, 1e-5, 1e-10)
    for at in (Topology(16384), Topology(2048, 8)):
        for name in candidate_names(at):
            times = [ALGORITHMS[name](size, at, net) for size in (256, SLOT, 1 << 30)]
            assert 0 < times[0] < times[1] < times[2] < 1e7, name


def test_cut_is_that_of_the_plans():
    assert cut(SEGMENT) == (1, SEGMENT)
    assert cut(SEGMENT + 4) == (2, SEGMENT)
    assert cut(SEGMENT * 4096 * 2)[0] == 4096
    assert cut(100) == (1, 100)
    recorded = plans("direct", 2 * 3 * SEGMENT, Topology(2))
    assert sum(len(channel["steps"]) for channel in recorded[0]["channels"] if channel["name"] == "send>1") == 2 * 3
    assert steps(recorded) == sum(len(channel["steps"]) for plan in recorded for channel in plan["channels"])


def test_hierarchy_differs_only_where_hosts_have_several_ranks():
    assert "hierarchy" not in candidates(Topology(8))
    assert "hierarchy" in candidates(Topology(4, 2), in_order=True)
    assert set(candidates(Topology(4, 2), in_order=True)) == set(IN_RANK_ORDER)


LINE_AT, LINE_NET = Topology(4), Network(0, 1, 0, 0, 0, 0)


def line(start, slope):
    return lambda size, at, net: start + slope * size


LATE = {"quick start": line(0, 3), "middle": line(20_000, 2), "long run": line(420_000, 1)}


def test_reigns_change_where_lines_cross():
    found = reigns(256, 1 << 24, LINE_AT, LINE_NET, LATE)
    assert [reign.algorithm for reign in found] == ["quick start", "middle", "long run"]
    assert found[0].begin == 256
    assert found[-1].end == 1 << 24
    for (first, second), (left, right) in zip(pairwise(LATE), pairwise(found), strict=True):
        assert right.begin - left.end == 4
        times = [LATE[name](right.begin, LINE_AT, LINE_NET) for name in (first, second)]
        assert times[0] / times[1] == pytest.approx(1 + MARGIN, rel=1e-3)


def test_an_algorithm_that_is_hardly_faster_does_not_take_over():
    same = {"first": line(100, 1), "second": line(0, 1 / (1 + 0.9 * MARGIN))}
    assert fastest(1 << 20, LINE_AT, LINE_NET, same) == "second"
    begun = {"first": line(0, 1), "second": line(100, 1 / (1 + 0.9 * MARGIN))}
    assert [reign.algorithm for reign in reigns(256, 1 << 20, LINE_AT, LINE_NET, begun)] == ["first"]


def test_steps_in_a_curve_do_not_make_reigns_change_to_and_fro():
    stairs = {"even": line(0, 1), "stairs": lambda size, at, net: size * (0.97 if size // 4096 % 2 else 1.03)}
    assert len(reigns(256, 1 << 24, LINE_AT, LINE_NET, stairs)) == 1


def test_the_grid_is_of_whole_elements_and_has_both_ends():
    sizes = grid(256, 10_000)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (256, 10_000)
    assert all(size % 4 == 0 for size in sizes)
    assert max(b / a for a, b in pairwise(sizes)) < 1.25


PLACES = [(name, at) for name in ALGORITHMS for at in (Topology(5), Topology(3, 2))]


@pytest.mark.parametrize(("name", "at"), PLACES, ids=str)
def test_bytes_and_messages_are_those_of_the_recorder(name, at):
    recorded = plans(name, 3 << 20, at)
    nodes = Graph(recorded, at.local).nodes
    for rank, plan in enumerate(recorded):
        mine = [node for node in nodes if node.rank == rank]
        assert sum(node.amount for node in mine if node.kind == WIRE) == plan["totals"]["bytes_sent"]
        assert sum(node.amount for node in mine if node.kind == COMPUTE) == plan["totals"]["memory_read"]
        assert sum(node.kind == WIRE for node in mine) == plan["totals"]["sends"]
    assert sum(node.kind == DELAY for node in nodes) == sum(node.kind == WIRE for node in nodes)


@pytest.mark.parametrize(("name", "at"), PLACES, ids=str)
def test_every_node_can_run(name, at):
    nodes = Graph(plans(name, 3 << 20, at), at.local).nodes
    ready = [number for number, node in enumerate(nodes) if not node.waits]
    for number in ready:
        for after in nodes[number].next:
            nodes[after].waits -= 1
            if not nodes[after].waits:
                ready.append(after)
    assert len(ready) == len(nodes)


def test_plans_that_do_not_fit_are_refused():
    recorded = copy.deepcopy(plans("direct", 4096, Topology(3)))
    channel = next(channel for channel in recorded[1]["channels"] if channel["name"] == "recv<0")
    channel["steps"].pop()
    with pytest.raises(ValueError, match="from rank 0 to rank 1"):
        Graph(recorded, 1)


NET = Network(1e-4, 8e-9, 4e-6, 3e-11, 2e-5, 3e-10, "a test")


def test_curves_reigns_and_picture(tmp_path):
    calibration, out, picture = tmp_path / "c.json", tmp_path / "s.json", tmp_path / "s.png"
    save_network(NET, calibration)
    said = run(
        *("scale_model.py", "--hosts", "4,2048", "--local", 8, "--calibration", calibration, "--alpha-us", 20),
        *("--simulate-up-to", 0, "--json", out, "--plot", picture),
    )
    result = read(out)
    assert "16384 rank order" in said
    assert "alpha given by hand" in said
    assert result["network"]["alpha"] == pytest.approx(20e-6)
    assert picture.stat().st_size > 10_000
    for panel, row in zip(result["curves"], result["reigns"], strict=True):
        assert "hierarchy" in panel["seconds"]
        for place, size in ((0, panel["sizes"][0]), (-1, panel["sizes"][-1])):
            quickest = min(times[place] for times in panel["seconds"].values())
            reign = row["any"][place]
            assert reign["begin"] <= size <= reign["end"]
            assert panel["seconds"][reign["algorithm"]][place] <= (1 + MARGIN) * 1.001 * quickest


def test_without_a_calibration_the_way_out_is_named(tmp_path):
    assert "--calibrate" in run("scale_model.py", "--calibration", tmp_path / "none.json", status=1)


def test_without_simgrid_the_reason_is_named(tmp_path):
    if importlib.util.find_spec("simgrid"):
        pytest.skip("simgrid is installed here")
    calibration = tmp_path / "c.json"
    save_network(NET, calibration)
    said = run("scale_model.py", "--hosts", 2, "--calibration", calibration, "--peers-folder", tmp_path)
    assert "not simulated: no simgrid" in said


@pytest.mark.parametrize("at", [Topology(4), Topology(2, 2)], ids=str)
def test_formulas_agree_with_simgrid_on_the_recorded_plans(at):
    python, reason = simulator(ROOT / ".peers")
    if reason:
        pytest.skip(reason)
    for name, cost in candidates(at).items():
        one = compare(python, name, cost, 1 << 20, at, NET)
        assert abs(one.deviation) < 0.05, name


def test_what_is_too_long_to_simulate_is_said():
    assert "steps are more than" in compare("", "ring", lambda *_: 0.0, 64 << 20, Topology(64), NET)


def test_the_platform_has_a_port_per_host_and_a_clock():
    tree = ElementTree.fromstring(platform(5, NET).split("?>", 1)[1].split('dtd">', 1)[1])
    cluster, clock = tree.iter("cluster")
    assert cluster.get("radical") == "0-4"
    assert float(cluster.get("bw").removesuffix("Bps")) == pytest.approx(1 / NET.beta)
    assert cluster.get("sharing_policy") == "SPLITDUPLEX"
    assert clock.get("id") == "clock"


def test_calibration_finds_the_constants_of_its_own_formula():
    at = Topology(2)
    exact = Network(NET.alpha, NET.beta, NET.gap, 0.0, 0.0, 0.0)
    one = {size: direct(size, at, exact) for size in (SMALL, MIDDLE)}
    one[LARGE] = one[SMALL] + (LARGE - SMALL) * NET.beta  # without the gaps of its own segments, which are below 1 %
    assert MIDDLE // 2 <= SEGMENT
    gap = gap_between(one, {MIDDLE: one[MIDDLE] + 2 * (SEGMENTS - 1) * NET.gap})
    assert gap == pytest.approx(NET.gap)
    assert alpha_and_beta(one, gap) == pytest.approx((NET.alpha, NET.beta))


def test_a_fold_costs_something():
    assert 1e-13 < fold_cost() < 1e-6


@pytest.mark.parametrize("change", [{"beta": 0}, {"alpha": -1}, {"gap": "much"}, {"extra": 1}])
def test_a_bad_calibration_is_refused(tmp_path, change):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**asdict(NET), **change}))
    with pytest.raises(ValueError, match=str(path)):
        load_network(path)
    save_network(NET, path)
    assert load_network(path) == NET
