"""ZeRO measured: optimizer steps, training steps, memory and wire."""
