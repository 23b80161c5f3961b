"""Fewer bytes per step: what `DistributedDataParallel(compress=...)` may be, and how it works."""

from ringdp.compress.methods import Codes, PowerSGD, TopK

__all__ = ["Codes", "PowerSGD", "TopK"]
