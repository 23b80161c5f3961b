"""Worlds of ranks with a device that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fake import fake_device

__all__ = ["fake_device"]
