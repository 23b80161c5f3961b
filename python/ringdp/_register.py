"""Makes "ringdp" a backend name of torch.distributed: a lazy door, an eager door and register().

Registering names a creator and nothing else; the extension is loaded when the first group is made. Neither door
may ever make `import torch` fail. RINGDP_AUTOLOAD=0 shuts the eager door. What RINGDP_ATTACH and RINGDP_AS ask for
starts here, too.
"""

from __future__ import annotations

import os
import warnings
from types import ModuleType
from typing import Any

_NAME = "ringdp"
_DEVICES = ("cpu", "cuda")
_warned = False


def torch_is_loaded(torch: ModuleType | None) -> bool:
    """Whether this entry of sys.modules is a torch whose import has ended."""
    if torch is None:
        return False
    return not getattr(getattr(torch, "__spec__", None), "_initializing", False)


def create(dist_backend_opts: Any, backend_options: Any) -> Any:
    """The creator torch calls for every new group, in its extended form."""
    from ringdp import backend

    return backend.create_backend(dist_backend_opts, backend_options)


def _is_registered(registry: Any) -> bool:
    return _NAME in registry.backend_list or _NAME.upper() in registry._plugins


def register() -> None:
    """Registers the backend; does nothing when it is registered. RuntimeError where torch has no distributed."""
    import torch.distributed as dist

    if not dist.is_available():
        raise RuntimeError("this build of torch has no torch.distributed, which ringdp is a backend of")
    if not _is_registered(dist.Backend):
        # A list: some releases iterate the characters of a string.
        dist.Backend.register_backend(_NAME, create, extended_api=True, devices=list(_DEVICES))


def register_lazily() -> None:
    """Entry point of the group torch.distributed.backends: torch calls it when the name is first asked for."""
    register()


def _has_lazy_door() -> bool:
    import torch.distributed as dist

    return hasattr(getattr(dist, "Backend", None), "_ensure_backend_registered")


def _wants_autoload() -> bool:
    value = os.environ.get("RINGDP_AUTOLOAD") or "1"
    if value not in ("0", "1"):
        _warn_once(f"invalid value '{value}' for RINGDP_AUTOLOAD (expected one of: 0, 1); taken as 1")
    return value != "0"


def _warn_once(message: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def autoload() -> None:
    """Entry point of the group torch.backends, called at the end of every `import torch`. Never raises."""
    try:
        if _wants_autoload() and not _has_lazy_door():
            register()
    except Exception as error:  # whatever it is, `import torch` goes on
        _warn_once(f"ringdp did not register itself: {error}; call ringdp.register() to see why")
    _attach()
    _choose()


def _attach() -> None:
    """`ringdp audit` and `ringdp doctor` watch the processes that they start; RINGDP_WATCH=1 asks for ringdp.watch."""
    try:
        if os.environ.get("RINGDP_ATTACH"):
            from ringdp.tools.attach import assignment

            assignment.start()
        if os.environ.get("RINGDP_WATCH", "0") != "0":
            from ringdp.tools.watch import switch

            switch.start()
    except Exception as error:  # whatever it is, `import torch` goes on
        _warn_once(f"ringdp does not watch this process: {error}")


def _choose() -> None:
    """RINGDP_AS makes ringdp the backend of programs that do not name it."""
    if not os.environ.get("RINGDP_AS"):
        return
    try:
        from ringdp import backend_choice

        backend_choice.install()
    except Exception as error:  # whatever it is, `import torch` goes on
        _warn_once(f"RINGDP_AS has no effect: {error}")
