"""What people type, the catalogue of questions and files of them, and answers in print."""

from __future__ import annotations

import json
import sys

import pytest
from ringdp.tools.planner import catalog, display, presets, units
from ringdp.tools.planner.catalog import _MODULES, KINDS
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind, Table
from ringdp.tools.planner.units import UnitError, whole

ANSWER = Answer(
    (Figure("length", 3.0, "s", "measured"), Figure("fits", None)),
    (Table("rows", (("rank", ""), ("size", "bytes")), ((0, 5),)),),
    ("go on",),
    ("mind the gap",),
    (("more", Answer((Figure("inner", True),))),),
)


def test_figures_by_name():
    assert ANSWER["length"] == 3.0 and ANSWER["fits"] is None
    with pytest.raises(StopIteration):
        ANSWER["width"]


def test_json_has_every_part_and_each_name_as_a_key_once():
    report = json.loads(json.dumps(ANSWER.as_json()))
    assert report["results"] == {"length": 3.0, "fits": None}
    assert report["figures"][0] == {"figure": "length", "unit": "s", "source": "measured"}
    assert report["tables"] == [{"title": "rows", "columns": [["rank", ""], ["size", "bytes"]], "rows": [[0, 5]]}]
    assert (report["advice"], report["warnings"]) == (["go on"], ["mind the gap"])
    assert report["sections"]["more"]["results"] == {"inner": True}


KIND = Kind(
    "area",
    "of a field",
    (Input("long_side", whole, "metres"), Input("short_side", whole, "metres", "2"), Input("tax", whole, "", "")),
    lambda long_side, short_side, tax: Answer((Figure("area", long_side * short_side), Figure("tax", tax))),
    "area --long-side 3",
)


def test_defaults_are_parsed_like_what_is_typed():
    answer = KIND.ask({"long_side": "1K"})
    assert (answer["area"], answer["tax"]) == (2000, None)
    assert KIND.ask({"long_side": "3", "tax": "7"})["tax"] == 7


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "area needs --long-side; for example: ringdp plan area --long-side 3"),
        ({"long_side": "x"}, "--long-side: 'x' is not a number"),
        ({"long_side": "3", "short_side": ""}, "--short-side: a value is needed"),
        ({"long_side": "3", "depth": "1"}, "no input 'depth': it has long_side, short_side, tax"),
    ],
)
def test_what_is_wrong_is_named(given, named):
    with pytest.raises(InputError) as refusal:
        KIND.ask(given)
    assert named in str(refusal.value)


# What people type, and what is refused with a way out.


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.count, "70B", 70e9),
        (units.count, "70_000_000_000", 70e9),
        (units.count, "7e9", 7e9),
        (units.count, "4M", 4e6),
        (units.whole, "1K", 1000),
        (units.wholes, "1,8,64", (1, 8, 64)),
        (units.wholes, "1-3,8", (1, 2, 3, 8)),
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
        (units.wholes, "8-1", "must go up"),
        (units.wholes, "1-70B", "must go up"),
        (units.wholes, "-3", "above 0"),
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


# Names that stand for numbers, against what their shapes say.


@pytest.mark.parametrize("model", presets.MODELS.values(), ids=presets.MODELS)
def test_a_model_s_shape_makes_about_its_parameters(model):
    assert 0.6 <= 12 * model.layers * model.hidden**2 / model.params <= 1.5
    assert model.hidden % model.heads == 0 and model.largest_unit < model.params / 2


def test_names_and_numbers():
    assert presets.peak_tflops("h100") == presets.peak_tflops("989") == presets.device("h100").bf16_tflops
    assert presets.device_gigabytes("a100") == presets.device_gigabytes("80GB") == 80
    assert presets.model("llama-70b").params == 70e9


@pytest.mark.parametrize("parse", [presets.peak_tflops, presets.device_gigabytes, presets.device])
def test_unknown_names_list_the_known_ones(parse):
    with pytest.raises(UnitError, match=r"'h101'.*v100, a100-40"):
        parse("h101")


def test_an_unknown_model_says_what_else():
    with pytest.raises(UnitError, match="or give --params"):
        presets.model("gpt9")


# The catalogue of questions, and inputs from TOML and JSON files: what is wrong in a file is named with the file.


def test_no_kind_hides_another():
    assert len(KINDS) == sum(len(module.KINDS) for module in _MODULES)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_defaults_are_what_one_may_type(kind):
    for entry in kind.inputs:
        if entry.default:
            entry.parse(entry.default)
    assert len({entry.name for entry in kind.inputs}) == len(kind.inputs)
    assert all(entry.help for entry in kind.inputs)


TABLES = {"efficiency": {"ranks": [1, 8], "tokens-per-rank": 4096}, "step": {"params": "70B"}}
AS_TEXT = {"efficiency": {"ranks": "1,8", "tokens_per_rank": "4096"}, "step": {"params": "70B"}}
TOML = '[efficiency]\nranks = [1, 8]\ntokens-per-rank = 4096\n[step]\nparams = "70B"\n'


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_json_becomes_text(tmp_path):
    assert catalog.read(written(tmp_path, "p.json", json.dumps(TABLES)), KINDS) == AS_TEXT


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML needs Python 3.11")
def test_toml_is_the_same(tmp_path):
    assert catalog.read(written(tmp_path, "p.toml", TOML), KINDS) == AS_TEXT


def test_toml_without_a_reader_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tomllib", None)
    with pytest.raises(InputError, match=r"write it as JSON"):
        catalog.read(written(tmp_path, "p.toml", TOML), KINDS)


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("p.json", "{", "Expecting property name"),
        ("p.json", "[]", "must be an object"),
        ("p.json", "{}", "has no table"),
        ("p.json", '{"stp": {}}', "invalid table 'stp' (expected one of: overview, batch"),
        ("p.json", '{"step": 3}', "'step' must be a table"),
        ("p.json", '{"step": {"params": null}}', "step.params must be a number or text"),
        ("p.json", '{"step": {"params": true}}', "step.params must be a number or text"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path, name, text, named):
    path = written(tmp_path, name, text)
    with pytest.raises(InputError) as refusal:
        catalog.read(path, KINDS)
    assert named in str(refusal.value) and str(path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "p.json"
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InputError, match="utf-8"):
        catalog.read(path, KINDS)


# Values for people, plain text, and rich in a terminal.

SHOWN = Answer(
    (Figure("sent", 279.7265625e9, "bytes", "2(N-1)/N |g|"), Figure("fits", False)),
    (Table("by [stage]", (("stage", ""), ("time", "s")), ((0, 0.0697), (1, 3.5))),),
    ("go on",),
    ("mind [the] gap",),
    (("more", Answer((Figure("inner", 4),))),),
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (279.7265625e9, "bytes", "279.73 GB"),
        (12, "bytes", "12 B"),
        (4.4e17, "FLOP", "440.00 PFLOP"),
        (0.697, "s", "697 ms"),
        (62.5e-6, "s", "62.5 us"),
        (3.4789, "s", "3.48 s"),
        (0.167, "share", "16.7 %"),
        (2046, "rounds", "2,046 rounds"),
        (1273.286, "ranks", "1,273.3 ranks"),
        (0.0024, "", "0.0024"),
        (True, "", "yes"),
        (None, "ranks", "none"),
        ({"one": 358.05, "both": [716.1, 2]}, "", "one 358.1, both 716.1 2"),
        ([[1, 104], [2, 108]], "", "1 104; 2 108"),
    ],
)
def test_values_for_people(value, unit, text):
    assert display.text_of(value, unit) == text


def test_plain_text_has_every_part(capsys):
    display.show("comm", SHOWN)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["comm", "  sent  279.73 GB  2(N-1)/N |g|", "  fits  no"]
    assert lines[3:7] == ["by [stage]", "  stage  time", "  0      69.7 ms", "  1      3.50 s"]
    assert lines[7:9] == ["warning: mind [the] gap", "-> go on"]
    assert lines[9:] == ["", "more", "  inner  4"]


def test_a_terminal_gets_the_same_by_rich(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    display.show("comm", SHOWN)
    text = capsys.readouterr().out
    for part in ("comm", "279.73 GB", "by [stage]", "69.7 ms", "mind [the] gap", "go on", "more", "inner", "─"):
        assert part in text
