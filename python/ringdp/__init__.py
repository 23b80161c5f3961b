"""ringdp: data-parallel training you can trust.

Importing this package does not import torch: every public name is loaded at its first use. The backend needs no
import at all - `torch.distributed.init_process_group("ringdp")` finds it through an entry point.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ringdp import _register

__version__ = "0.1.0"
__all__ = [
    "AuditError",
    "DiLoCo",
    "DistributedDataParallel",
    "GradScaler",
    "OneBitAdam",
    "Options",
    "PowerSGD",
    "RunLog",
    "TopK",
    "Workload",
    "ZeroOptimizer",
    "__version__",
    "audit",
    "check_replicas",
    "checkpoint",
    "clip_grad_norm_",
    "compress",
    "elastic",
    "empty",
    "in_shared_memory",
    "info",
    "integrations",
    "leaf",
    "monitored_barrier",
    "preflight",
    "register",
    "serve_prometheus",
    "stats",
    "testing",
    "watch",
]

# public name -> (module, attribute; None for the module itself)
_LAZY: dict[str, tuple[str, str | None]] = {
    "AuditError": ("ringdp.tools.feed.hooks", "AuditError"),
    "DiLoCo": ("ringdp.local.diloco", "DiLoCo"),
    "DistributedDataParallel": ("ringdp.ddp.wrapper", "DistributedDataParallel"),
    "GradScaler": ("ringdp.zero.scaler", "GradScaler"),
    "OneBitAdam": ("ringdp.compress.one_bit", "OneBitAdam"),
    "Options": ("ringdp.backend", "Options"),
    "PowerSGD": ("ringdp.compress.methods", "PowerSGD"),
    "RunLog": ("ringdp.tools.observe.run_log", "RunLog"),
    "TopK": ("ringdp.compress.methods", "TopK"),
    "Workload": ("ringdp.tools.planner.workload", "Workload"),
    "ZeroOptimizer": ("ringdp.zero.optimizer", "ZeroOptimizer"),
    "audit": ("ringdp.tools.feed.audit", "audit"),
    "check_replicas": ("ringdp.tools.observe.replicas", "check_replicas"),
    "clip_grad_norm_": ("ringdp.zero.clip", "clip_grad_norm_"),
    "checkpoint": ("ringdp.checkpoint", None),
    "compress": ("ringdp.compress", None),
    "elastic": ("ringdp.elastic", None),
    "empty": ("ringdp.allocate", "empty"),
    "in_shared_memory": ("ringdp.allocate", "in_shared_memory"),
    "info": ("ringdp.cli.info", "collect"),
    "integrations": ("ringdp.integrations", None),
    "leaf": ("ringdp.elastic.leaf", "leaf"),
    "monitored_barrier": ("ringdp.backend", "monitored_barrier"),
    "preflight": ("ringdp.tools.planner.preflight", "preflight"),
    "register": ("ringdp._register", "register"),
    "serve_prometheus": ("ringdp.tools.observe.prometheus", "serve_prometheus"),
    "stats": ("ringdp.tools.observe.stats", "stats"),
    "testing": ("ringdp.testing", None),
    "watch": ("ringdp.tools.watch.watch", "watch"),
}


def __getattr__(name: str) -> Any:
    """Loads a public name, or `_C` after checking that it was built for the torch that is installed.

    Raises AttributeError for unknown names and ImportError when `_C` cannot be used, with what to type.
    """
    if name == "_C":
        from ringdp import _native

        return _native.load()
    if name not in _LAZY:
        raise AttributeError(f"module 'ringdp' has no attribute '{name}'")
    module, attribute = _LAZY[name]
    loaded = importlib.import_module(module)
    value = loaded if attribute is None else getattr(loaded, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)


# Third door: torch was imported first, with its own autoload off or before ringdp was on the path.
if _register.torch_is_loaded(sys.modules.get("torch")):
    _register.autoload()
