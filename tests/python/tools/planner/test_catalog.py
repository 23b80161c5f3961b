"""The catalogue of questions, and inputs from TOML and JSON files: what is wrong in a file is named with the file."""

from __future__ import annotations

import json
import sys

import pytest
from ringdp.tools.planner import catalog
from ringdp.tools.planner.catalog import _MODULES, KINDS
from ringdp.tools.planner.question import InputError


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
