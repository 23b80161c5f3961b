"""ringdp/__init__.py: nothing heavy at import, every public name at its first use."""

import ast
from importlib import metadata

import pytest
import ringdp


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
