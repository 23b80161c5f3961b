"""benchmarks/scale_model.py from end to end on a stored calibration; calibration arithmetic; bad files."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from xml.etree import ElementTree

import pytest
from programs import ROOT, read, run
from scale.calibrate import LARGE, MIDDLE, SEGMENTS, SMALL, alpha_and_beta, fold_cost, gap_between
from scale.compare import compare, simulator
from scale.costs import SEGMENT, Topology, candidates, direct
from scale.crossover import MARGIN
from scale.network import Network, load_network, save_network
from scale.simulate import platform

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
