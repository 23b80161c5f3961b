"""What saves lines where a trainer writes the loop: `Meter` here, and a module for each trainer that needs one.

    ringdp.integrations.lightning      RingdpStrategy, RunLogCallback
    ringdp.integrations.transformers   observe()

Importing this package imports no trainer. Over which line a trainer runs over ringdp at all: docs/trainers.md.
"""

from __future__ import annotations

from ringdp.integrations.meter import Meter

__all__ = ["Meter"]
