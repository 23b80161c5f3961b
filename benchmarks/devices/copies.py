"""How fast devices copy, from themselves and from each other: of each ordered pair, as ringdp finds out what links are
like (csrc/device/runtime/links.h).
"""

from __future__ import annotations

import os
import time
from typing import Any

from devices.core import Core, CoreError

LARGE, SMALL = 16 << 20, 16  # bytes; the small one takes what every copy takes
TIMES = 5


def least_seconds(core: Core, device: int, to: int, source: int, size: int) -> float:
    """Of a few copies, with the stream that each makes."""
    took = []
    for _ in range(TIMES):
        begin = time.monotonic()
        core.copy_now(to, source, size, device)
        took.append(time.monotonic() - begin)
    return min(took)


def speeds(core: Core) -> dict[str, Any]:
    """GB/s by reader and owner of the memory; a pair that does not reach each other has the library's sentence."""
    devices = range(core.count())
    memory = {device: (core.alloc(LARGE, device), core.alloc(LARGE, device)) for device in devices}
    facts: dict[str, Any] = {"us of a copy of 16 bytes": round(1e6 * least_seconds(core, 0, *memory[0], SMALL), 2)}
    for owner in devices:
        handle, fd = core.export(memory[owner][0])
        for reader in devices:
            name, to = f"GB/s, device {reader} from device {owner}", memory[reader][1]
            try:
                source = core.import_(handle, fd, reader)
            except CoreError as error:
                facts[name] = str(error)
                continue
            seconds = least_seconds(core, reader, to, source, LARGE) - least_seconds(core, reader, to, source, SMALL)
            core.unimport(source)
            facts[name] = round(LARGE / max(seconds, 1e-6) / 1e9, 1)
        if fd >= 0:
            os.close(fd)
    for both in memory.values():
        for one in both:
            core.free(one)
    return facts
