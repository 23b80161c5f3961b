"""A line through points, and a file that comes back."""

import json
from dataclasses import asdict, replace

import invented
import pytest
from ringdp.tools.planner.calibration import line_of, load, moved_bytes, slowest
from ringdp.tools.planner.local_ranks import ProbeJob
from ringdp.tools.planner.prediction import calibrated
from ringdp.tools.planner.question import InputError

FOUND = calibrated([invented.report(2)] * 2, ProbeJob("mlp", 8, 2, ()), 2, 100e6)


def test_latency_and_bandwidth_are_found_again():
    assert FOUND.alpha == pytest.approx(1e-3)
    assert FOUND.seconds_per_byte == pytest.approx(1 / 100e6)
    assert line_of([(5.0, 3.0)]) == (3.0, 0.0)
    assert line_of([(1.0, 2.0), (2.0, 1.0)]) == (2.0, 0.0)  # noise must not make bytes pay


def test_bytes_that_count():
    assert moved_bytes(100, 4, between_hosts=True) == 150 and moved_bytes(100, 4, between_hosts=False) == 100


def test_the_slowest_rank_counts():
    assert slowest([{"step": [1, 2, 9]}, {"step": [3, 3, 3]}], "step") == 3


def test_a_file_comes_back(tmp_path):
    FOUND.save(tmp_path / "here.json")
    assert load(tmp_path / "here.json") == FOUND


def test_the_bucket_that_costs_least_on_what_was_measured():
    assert FOUND.suggested_bucket_bytes == pytest.approx((invented.HELD["gradients"] * 100e6 * 1e-3) ** 0.5)
    free = replace(FOUND, seconds_per_byte=0.0)
    assert free.suggested_bucket_bytes == invented.HELD["gradients"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"ranks": "2"}, "'ranks' is '2'"),
        ({"ranks": 0}, "'ranks' is 0"),
        ({"cores": True}, "'cores' is True"),
        ({"forward": float("nan")}, "'forward' is nan"),
        ({"base": 10**400}, "measure again"),
        ({"step": None}, "'step' is None"),
        ({"bandwidth": "1Gb/s"}, "'bandwidth' is '1Gb/s'"),
        ({"workload": 3}, "'workload' is 3"),
        ({"buckets": 5}, "'buckets' is 5"),
        ({"ready": ["a", 1]}, "'ready' is 'a'"),
        ({"ready": [1.0]}, "'buckets' are 2, 'ready' are 1"),
    ],
)
def test_a_value_that_was_never_measured_is_named(tmp_path, changed, named):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**asdict(FOUND), **changed}))
    with pytest.raises(InputError, match=named) as refusal:
        load(path)
    assert "\n" not in str(refusal.value) and str(refusal.value).count(str(path)) == 1


@pytest.mark.parametrize(("text", "named"), [("{", "Expecting"), ("{}", "measure again"), ("[1]", "measure again")])
def test_a_bad_file_is_named(tmp_path, text, named):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError, match=named) as refusal:
        load(path)
    assert str(path) in str(refusal.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="make one by ringdp plan --calibrate"):
        load(tmp_path / "none.json")
    with pytest.raises(InputError, match="No such file"):
        FOUND.save(tmp_path / "no" / "folder.json")
