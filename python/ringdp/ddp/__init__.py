"""Data-parallel training: stock DistributedDataParallel's interface over ringdp's own reducer (csrc/reducer)."""
