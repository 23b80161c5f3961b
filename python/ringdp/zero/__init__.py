"""ZeRO: optimizer state, gradients and parameters in shards; the same bits in a fraction of the memory (csrc/zero)."""
