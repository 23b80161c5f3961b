"""What `ringdp tune` measured on this host: where it lies, when it is trusted, and how it is written.

The file is the user's own, one per host, named by what makes a measurement hold there: machine, processor, cores and
release of ringdp. An unusable file is left alone and named in one warning; no job fails because of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import stat
import tempfile
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import ringdp
from ringdp import _native

FIELDS = (
    "one_shot_bytes_of_two",
    "one_shot_bytes_of_more",
    "one_pass_bytes_of_two",
    "one_pass_bytes_of_more",
    "slot_bytes_of_two",
    "slot_bytes_of_more",
    "spin_us",
)
VARIABLE = "RINGDP_TUNE"
_FORMAT = 1
_LARGEST_FILE = 1 << 16
_warned: set[Path] = set()


def _machine() -> str:
    try:
        return Path("/etc/machine-id").read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


@cache
def host() -> dict[str, str | int]:
    """What a measurement depends on; the same after a reboot."""
    return {
        "machine": _machine(),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "ringdp": ringdp.__version__,
    }


def path() -> Path | None:
    """The file of this host; None when RINGDP_TUNE=off."""
    choice = os.environ.get(VARIABLE) or "auto"
    if choice == "off":
        return None
    if choice != "auto":
        return Path(choice)
    above = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(json.dumps(host(), sort_keys=True).encode()).hexdigest()[:16]
    return Path(above, "ringdp", f"tuned-{name}.json")


def load() -> dict[str, int]:
    """The values measured on this host, by field; empty when there are none."""
    file = path()
    if file is None:
        return {}
    try:
        return _checked(_read(file))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        if file not in _warned:
            _warned.add(file)
            message = f"{file} is ignored: {error}; run `ringdp tune` again, or set {VARIABLE}=off"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return {}


def _read(file: Path) -> object:
    # Opening a pipe without a writer would block.
    with open(file, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        text = stream.read(_LARGEST_FILE + 1)
    if len(text) > _LARGEST_FILE:
        raise ValueError(f"it is larger than {_LARGEST_FILE} bytes")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from None


def _checked(content: object) -> dict[str, int]:
    """The values of a file that was written here, by this release. ValueError says what is wrong."""
    if not isinstance(content, dict) or content.get("format") != _FORMAT or not isinstance(content.get("values"), dict):
        raise ValueError("ringdp tune did not write it, or another release did")
    if content.get("host") != host():
        raise ValueError(f"it was measured on {content.get('host')}, and this is {host()}")
    scratch = _native.load().Options()
    for field, value in content["values"].items():
        if field not in FIELDS or type(value) is not int:
            raise ValueError(f"{field}={value!r} is not a value that ringdp tune measures")
        try:
            scratch.set_tuned(field, str(value))
        except RuntimeError as error:
            raise ValueError(str(error)) from None
    return content["values"]


def save(values: Mapping[str, int]) -> Path:
    """Adds `values` to those of this host, in one step: readers see the old file or the new one.

    ValueError when RINGDP_TUNE=off; OSError when it cannot be written.
    """
    file = path()
    if file is None:
        raise ValueError(f"{VARIABLE}=off: there is no file to write")
    content = {"format": _FORMAT, "host": host(), "values": {**load(), **values}}
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f"{file.name}.", delete=False) as stream:
        try:
            json.dump(content, stream, indent=1)
            stream.close()
            os.replace(stream.name, file)
        except BaseException:
            os.unlink(stream.name)
            raise
    return file


def in_force(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows of the settings table, where what was measured stands in place of a default, as source "tuned"."""
    tuned = load()
    return [
        {**row, "value": str(tuned[row["field"]]), "source": "tuned"}
        if row["source"] == "default" and row["field"] in tuned
        else dict(row)
        for row in rows
    ]
