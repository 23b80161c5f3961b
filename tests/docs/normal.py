"""What differs from run to run in messages, made equal: pids, hosts, times, ports, and which rank noticed first."""

from __future__ import annotations

import re
import socket

_REPLACED = (
    (re.compile(r"pid \d+ on [^)\s]+"), "pid 1 on HOST"),
    (re.compile(r"\bpid \d+"), "pid 1"),
    (re.compile(r"\b\d+\.\d+ (s|ms|us)\b"), r"0.0 \1"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:1"),
    (re.compile(r"its process is [^.;\n]+"), "its process is SOMEHOW"),
    # It may hear of it before it calls or after.
    (re.compile(r"\(this rank called "), "(this rank was in "),
    # Of two ranks that disagree one notices, and the other is told.
    (re.compile(r"rank \d+( \(pid 1 on HOST\))? gave up: "), ""),
)
_SIDE = r"(rank \d+ (?:\(pid 1 on HOST\) )?(?:called|has) .+?)"
_BOTH_SIDES = re.compile(rf"{_SIDE}, {_SIDE}(?=\. |; )")


def normal(text: str) -> str:
    """`text` with the same word for what no two runs share."""
    text = text.replace(socket.gethostname(), "HOST")
    for pattern, word in _REPLACED:
        text = pattern.sub(word, text)
    text = _BOTH_SIDES.sub(lambda found: ", ".join(sorted(found.groups())), text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
