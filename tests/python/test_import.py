"""Nothing heavy at import, every public name at its first use; an extension that does not fit is one sentence."""

from __future__ import annotations

import ast
import json
from importlib import metadata

import pytest
import ringdp
import torch
from ringdp import _native


def test_importing_ringdp_does_not_import_torch(run_python):
    result = run_python("import sys, ringdp; print('torch' in sys.modules)")
    assert result.stdout.strip() == "False", result.stderr


@pytest.mark.parametrize("name", ringdp.__all__)
def test_every_public_name_loads(name):
    assert getattr(ringdp, name) is not None
    assert name in dir(ringdp)


def test_unknown_names_are_refused_by_name():
    with pytest.raises(AttributeError, match="no_such_name"):
        ringdp.no_such_name  # noqa: B018


def test_version_is_the_one_of_the_metadata():
    assert metadata.version("ringdp") == ringdp.__version__


@pytest.mark.parametrize(("autoload", "registered"), [("1", True), ("0", False)])
def test_import_after_torch_registers_where_torch_did_not(run_python, autoload, registered):
    code = (
        "import torch, torch.distributed as d; before = d.is_backend_available('ringdp'); "
        "import ringdp; print([before, d.is_backend_available('ringdp')])"
    )
    result = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0", RINGDP_AUTOLOAD=autoload)
    before, after = ast.literal_eval(result.stdout)
    lazy_door = run_python("import torch.distributed as d; print(hasattr(d.Backend, '_ensure_backend_registered'))")
    if lazy_door.stdout.strip() == "True":
        assert before and after
    else:
        assert (before, after) == (False, registered)


# ringdp/_native.py: an extension that does not fit is one sentence with what to type.

FIT = {"torch": torch.__version__, "python": "3", "compiler": "g++", "date": "today"}


@pytest.fixture
def record(tmp_path, monkeypatch):
    path = tmp_path / "_built.json"
    monkeypatch.setattr(_native, "_RECORD", path)
    _native.load.cache_clear()
    return path


@pytest.mark.parametrize(
    ("built", "found", "fits"),
    [
        ("2.13.0", "2.13.0+cpu", True),
        ("2.13.0+cpu", "2.13.1+cu130", True),
        ("2.13.0", "2.14.1", False),
        ("2.1.0", "2.13.0", False),
        ("3.13.0", "2.13.0", False),
    ],
)
def test_releases_fit_by_their_minor(built, found, fits):
    assert (_native.mismatch(built, found) is None) == fits


def test_the_sentence_names_both_releases_and_the_way_out():
    sentence = _native.mismatch("2.13.0+cpu", "2.14.1")
    assert sentence.startswith("ringdp was built for torch 2.13 but torch 2.14.1 is installed: install ringdp's wheel")
    assert "`pip install 'torch==2.13.*'`" in sentence and "--no-build-isolation --force-reinstall ." in sentence


def test_another_torch_is_refused_before_the_library_is_opened(record, monkeypatch):
    record.write_text(json.dumps({**FIT, "torch": "1.2.3"}))
    monkeypatch.setattr(_native.importlib, "import_module", pytest.fail)
    with pytest.raises(ImportError, match=r"built for torch 1\.2 but torch"):
        ringdp.__getattr__("_C")


def test_without_a_build_the_command_is_named(record):
    assert _native.built_for() == {}
    with pytest.raises(ImportError, match="not built here: run `pip install --no-build-isolation"):
        _native.load()


def test_a_library_that_does_not_load_is_explained(record, monkeypatch):
    def fail(name):
        raise ImportError("undefined symbol: xyz")

    record.write_text(json.dumps(FIT))
    monkeypatch.setattr(_native.importlib, "import_module", fail)
    with pytest.raises(ImportError, match=r"does not load \(undefined symbol: xyz\)"):
        _native.load()


def test_without_torch_the_command_is_named(run_python):
    result = run_python("import sys; sys.modules['torch'] = None; import ringdp; ringdp._C")
    assert "ImportError: ringdp needs torch: `pip install torch" in result.stderr


def test_the_built_library_loads_and_knows_its_torch():
    assert _native.load().built_for()["torch"] == _native.built_for()["torch"]
