"""RINGDP_AS: process groups of programs that name gloo, or no backend at all, are ringdp's without an edit.

torch makes every group of c10d in one function, `_new_process_group_helper`. Here it gets another name for the backend,
and torch's tables keep the one that the program gave: `get_backend()` answers what it would without the variable, and
programs that ask for it take the way that they take with gloo. `_register` loads this module only where the variable is
set.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ringdp import _register

VARIABLE = "RINGDP_AS"
CHOICES = ("gloo", "cpu-default")

# What torch.distributed.get_backend_config() says of groups that name gloo.
AS_GLOO = "ringdp-as-gloo"
_CARRIED = {
    "gloo": "groups whose backend is gloo run over ringdp",
    "cpu-default": "groups on the CPU for which no backend is named run over ringdp",
}
_installed = False
_said = False


def parse(text: str) -> str:
    """One of CHOICES. ValueError says what is expected."""
    if text not in CHOICES:
        raise ValueError(f"invalid value '{text}' for {VARIABLE} (expected one of: {', '.join(CHOICES)})")
    return text


def from_environment() -> str:
    """The choice of this process, '' for none. ValueError on a bad one, or where RINGDP_AUTOLOAD=0 forbids it."""
    text = os.environ.get(VARIABLE)
    if text and os.environ.get("RINGDP_AUTOLOAD") == "0":
        raise ValueError(f"{VARIABLE}={text} needs ringdp at `import torch`, but RINGDP_AUTOLOAD=0: unset one of them")
    return parse(text) if text else ""


def install() -> None:
    """Once per process, at `import torch`; a bad value is an error of the first group. RuntimeError: not this torch."""
    global _installed
    if _installed:
        return
    from torch.distributed import distributed_c10d as c10d

    original = getattr(c10d, "_new_process_group_helper", None)
    if original is None or "backend" not in inspect.signature(original).parameters:
        raise RuntimeError("this torch makes process groups in another way than releases 2.11 to 2.15")
    _installed = True
    try:
        choice = from_environment()
    except ValueError as error:
        c10d._new_process_group_helper = _refusing(original, str(error))
        return
    _register.register()
    if choice == "cpu-default":
        c10d.Backend.default_device_backend_map["cpu"] = "ringdp"
    else:
        c10d.Backend.register_backend(AS_GLOO, _create_for_gloo, extended_api=True, devices=["cpu", "cuda"])
    c10d._new_process_group_helper = _renaming(original, choice, c10d)


def _create_for_gloo(dist_backend_opts: Any, backend_options: object) -> Any:
    """gloo takes no options, so those of a program may be another backend's ("cpu:gloo,cuda:nccl")."""
    from ringdp import backend

    ours = isinstance(backend_options, Mapping | backend.Options)
    return backend.create_backend(dist_backend_opts, backend_options if ours else None)


def _refusing(original: Callable[..., Any], reason: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ValueError(reason)

    return refuse


def _renaming(original: Callable[..., Any], choice: str, c10d: ModuleType) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        named = call.arguments["backend"]
        renamed = carried_by(str(named), choice, c10d)
        if "ringdp" not in renamed:
            return original(*args, **kwargs)
        _say_once(choice, call.arguments, c10d)
        call.arguments["backend"] = renamed
        known = set(c10d._world.pg_map)
        group, store = original(*call.args, **call.kwargs)
        if group in c10d._world.pg_map and group not in known:
            c10d._world.pg_map[group] = (named, store)
        return group, store

    return make


def carried_by(named: str, choice: str, c10d: ModuleType) -> str:
    """The name of the backend to make in place of `named`, which is as torch has parsed it: in lower case."""
    if named == c10d.Backend.UNDEFINED:
        # By the device: as torch would, but in releases before 2.14 a name is needed for the group's default backend.
        chosen = c10d.BackendConfig(named).get_device_backend_map()
        return carried_by(chosen["cpu"], choice, c10d) if set(chosen) == {"cpu"} else named
    if choice != "gloo":
        return named
    parts = [part.rpartition(":") for part in named.split(",")]
    return ",".join(device + colon + (AS_GLOO if name == "gloo" else name) for device, colon, name in parts)


def _say_once(choice: str, arguments: Mapping[str, Any], c10d: ModuleType) -> None:
    """On rank 0: it makes, or hears of, every group of the job."""
    global _said
    rank = c10d.get_rank() if arguments["global_ranks_in_group"] else arguments["group_rank"]
    if rank == 0 and not _said:
        _said = True
        print(f"ringdp: {VARIABLE}={choice}: {_CARRIED[choice]}", file=sys.stderr, flush=True)
