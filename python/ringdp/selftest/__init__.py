"""Checks every collective against a serial oracle, bit for bit: what `ringdp selftest` and the soak run share."""
