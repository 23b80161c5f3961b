"""ringdp/_register.py: the doors open by themselves, can be shut, and never make torch unimportable."""

import sys
import types
import warnings
from importlib import metadata

import pytest
import torch.distributed as dist
from ringdp import _register

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch has no torch.distributed")
ASK = "import torch.distributed as d; print(d.is_backend_available('ringdp'))"


@pytest.fixture
def fresh_warning(monkeypatch):
    monkeypatch.setattr(_register, "_warned", False)


def test_the_name_is_there_without_an_import(run_python):
    result = run_python(ASK)
    assert result.stdout.strip() == "True", result.stderr


@pytest.mark.skipif(_register._has_lazy_door(), reason="this torch has the lazy door, which has no switch")
def test_autoload_can_be_switched_off(run_python):
    assert run_python(ASK, RINGDP_AUTOLOAD="0").stdout.strip() == "False"


def test_register_works_with_autoload_off_and_twice(run_python):
    result = run_python(f"import ringdp; ringdp.register(); ringdp.register(); {ASK}", RINGDP_AUTOLOAD="0")
    assert result.stdout.strip() == "True", result.stderr


def test_a_bad_value_warns_and_torch_still_imports(run_python):
    result = run_python(f"import torch; {ASK}", RINGDP_AUTOLOAD="perhaps")
    assert result.stdout.strip() == "True"
    assert "invalid value 'perhaps' for RINGDP_AUTOLOAD (expected one of: 0, 1)" in result.stderr


@pytest.mark.parametrize(
    ("group", "function"),
    [
        ("torch.backends", _register.autoload),
        ("torch.distributed.backends", _register.register_lazily),
    ],
)
def test_entry_points_name_the_backend_and_load(group, function):
    ours = {point.value: point for point in metadata.entry_points(group=group) if point.name == "ringdp"}
    assert [point.load() for point in ours.values()] == [function]


def test_the_eager_door_stays_shut_where_the_lazy_one_exists(monkeypatch):
    calls = []
    monkeypatch.setattr(_register, "register", lambda: calls.append("registered"))
    monkeypatch.setattr(dist.Backend, "_ensure_backend_registered", None, raising=False)
    _register.autoload()
    assert calls == []
    monkeypatch.setattr(_register, "_has_lazy_door", lambda: False)
    _register.autoload()
    assert calls == ["registered"]


def test_a_failing_hook_warns_once_and_does_not_raise(monkeypatch, fresh_warning):
    def fail():
        raise RuntimeError("out of luck")

    monkeypatch.setattr(_register, "_has_lazy_door", lambda: False)
    monkeypatch.setattr(_register, "register", fail)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        _register.autoload()
        _register.autoload()
    assert [w.category for w in seen] == [RuntimeWarning]
    assert "out of luck" in str(seen[0].message)


def test_a_warning_turned_into_an_error_does_not_break_import_torch(run_python):
    result = run_python("-W", "error::RuntimeWarning", "-c", ASK, RINGDP_AUTOLOAD="perhaps")
    assert result.returncode == 0, result.stderr


def test_both_devices_in_every_spelling():
    _register.register()
    assert dist.Backend.backend_capability["ringdp"] == ["cpu", "cuda"]
    for spelling, cpu in [
        ("ringdp", "ringdp"),
        ("cpu:ringdp", "ringdp"),
        ("cpu:ringdp,cuda:ringdp", "ringdp"),
        ("cpu:gloo,cuda:ringdp", "gloo"),
    ]:
        config = dist.distributed_c10d.BackendConfig(dist.Backend(spelling))
        assert config.get_device_backend_map()["cpu"] == cpu


def test_the_creator_hands_both_arguments_on(monkeypatch):
    backend = types.ModuleType("ringdp.backend")
    backend.create_backend = lambda opts, backend_options: (opts, backend_options)
    monkeypatch.setitem(sys.modules, "ringdp.backend", backend)
    monkeypatch.setattr(sys.modules["ringdp"], "backend", backend, raising=False)
    assert _register.create("opts", None) == ("opts", None)


def test_a_half_imported_torch_does_not_count():
    torch = types.ModuleType("torch")
    torch.__spec__ = types.SimpleNamespace(_initializing=True)
    assert not _register.torch_is_loaded(torch)
    torch.__spec__ = types.SimpleNamespace(_initializing=False)
    assert _register.torch_is_loaded(torch)
    assert not _register.torch_is_loaded(None)
