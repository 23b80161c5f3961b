"""Fewer bytes per step: what `DistributedDataParallel(compress=...)` may be, and how it works."""

from ringdp.compress.methods import Auto, Codes, PowerSGD, TopK

__all__ = ["Auto", "Codes", "PowerSGD", "TopK"]
