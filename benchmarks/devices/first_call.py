"""One of several ranks that share a device: small all_reduces over ringdp; rank 0 prints what they cost, as JSON.

python -m devices.first_call DEVICE      (rank and address from the environment, as torchrun sets them)
"""

from __future__ import annotations

import json
import sys
import time

import ringdp
import torch
import torch.distributed as dist

BYTES, CALLS = 4096, 200


def synchronize(tensor: torch.Tensor) -> None:
    """Until the device has done what is queued."""
    if tensor.is_cuda:
        torch.cuda.synchronize()


def main(device: str) -> None:
    """Checks the first call, then times CALLS in a row: on the host, and until the device is done."""
    ringdp.register()
    dist.init_process_group("ringdp")
    tensor = torch.ones(BYTES // 4, device=device)
    dist.all_reduce(tensor)
    if not bool((tensor == dist.get_world_size()).all()):
        raise SystemExit(f"the first all_reduce is wrong: {tensor[:4].tolist()}")
    tensor.zero_()
    synchronize(tensor)
    dist.barrier()
    begin = time.monotonic()
    for _ in range(CALLS):
        dist.all_reduce(tensor)
    queued = time.monotonic()
    synchronize(tensor)
    done = time.monotonic()
    backend = dist.group.WORLD._get_backend(torch.device(device))
    lines = [line for line in backend.describe().splitlines() if line.startswith("tensors on ")]
    if dist.get_rank() == 0:
        facts = {
            "us of the host per all_reduce of 4 KiB": round(1e6 * (queued - begin) / CALLS, 1),
            "us per all_reduce of 4 KiB": round(1e6 * (done - begin) / CALLS, 1),
        }
        print(json.dumps({"describe": " ".join(lines) or backend.describe(), **facts}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
