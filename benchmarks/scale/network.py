"""The machine of the model: what a message, a byte and a folded byte cost, between hosts and within one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Network:
    """Seconds, and seconds per byte. Links are full duplex; the switch between them is as fast as all of them."""

    alpha: float  # from the last byte sent to the last byte received, with the call's own cost
    beta: float  # per byte through a host's port
    gap: float  # what a message occupies a port for besides its bytes
    gamma: float  # per byte that a fold or a copy reads
    local_alpha: float  # alpha and beta of a link within a host
    local_beta: float
    origin: str = "given by hand"

    def wire(self, nbytes: float) -> float:
        """How long a message occupies a port."""
        return self.gap + nbytes * self.beta

    def local(self, nbytes: float) -> float:
        """A message within a host, from end to end."""
        return self.local_alpha + nbytes * self.local_beta


def load_network(path: Path) -> Network:
    """ValueError names the file and what is wrong with it."""
    try:
        network = Network(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: measure one with --calibrate (needs root), or name another") from None
    except (TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no calibration: {error}") from None
    for name, value in asdict(network).items():
        if name != "origin" and not (isinstance(value, (int, float)) and value >= 0):
            raise ValueError(f"{path}: {name}={value!r} must be a number of seconds, at least 0")
    if not network.beta > 0:
        raise ValueError(f"{path}: beta={network.beta!r} must be above 0")
    return network


def save_network(network: Network, path: Path) -> None:
    """As JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(network), indent=1) + "\n")
