"""What people type, and what is refused with a way out."""

import pytest
from ringdp.tools.planner import units


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.count, "70B", 70e9),
        (units.count, "70_000_000_000", 70e9),
        (units.count, "7e9", 7e9),
        (units.count, "4M", 4e6),
        (units.whole, "1K", 1000),
        (units.wholes, "1,8,64", (1, 8, 64)),
        (units.amount, "3e-4", 3e-4),
        (units.share, "50%", 0.5),
        (units.share, "0.5", 0.5),
        (units.bandwidth, "400GB/s", 400e9),
        (units.bandwidth, "400Gb/s", 50e9),
        (units.bandwidth, "100 Gbit/s", 12.5e9),
        (units.bandwidth, "100Gbps", 12.5e9),
        (units.bandwidth, "1GiB/s", 2**30),
        (units.size, "25MB", 25e6),
        (units.size, "16GiB", 16 * 2**30),
        (units.gigabytes, "80", 80),
        (units.gigabytes, "80000MB", 80),
        (units.megabytes, "25MB", 25),
        (units.seconds, "20ms", 0.02),
        (units.microseconds, "0.01ms", 10),
        (units.microseconds, "10", 10),
        (units.wire, "fp8", "fp8"),
    ],
)
def test_what_people_type(parse, text, value):
    assert parse(text) == pytest.approx(value) if not isinstance(value, str) else parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "way_out"),
    [
        (units.bandwidth, "400", "type 400GB/s for gigabytes or 400Gb/s for gigabits"),
        (units.bandwidth, "400GB", "type one of 400GB/s"),
        (units.bandwidth, "fast", "not a number"),
        (units.bandwidth, "0GB/s", "above 0"),
        (units.size, "25", "type 25MB"),
        (units.count, "70X", "type one of 70B"),
        (units.count, "-1", "above 0"),
        (units.count, "1e999", "too large"),
        (units.count, "1e31", "from 1e-30 to 1e+30"),
        (units.whole, "1e300", "from 1e-30 to 1e+30"),
        (units.bandwidth, "1e-31B/s", "from 1e-30"),
        (units.share, "1e-31", "from 1e-30"),
        (units.count, "nan", "not a number"),
        (units.whole, "1.5", "whole number"),
        (units.amount, "989TF", "plain number"),
        (units.share, "150%", "at most 1"),
        (units.share, "0", "above 0"),
        (units.seconds, "3", "no unit"),
        (units.wire, "fp7", "expected one of: fp32, bf16"),
    ],
)
def test_what_is_refused_names_the_text_and_the_way_out(parse, text, way_out):
    with pytest.raises(units.UnitError) as refusal:
        parse(text)
    assert text in str(refusal.value) and way_out in str(refusal.value)
    assert "\n" not in str(refusal.value)
