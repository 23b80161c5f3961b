"""What a rank on one of two hosts does: `on_host.py WHICH FOLDER`: hashes by cell into FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from training import STEPS, cells_between_hosts, on_this_rank


def main() -> None:
    """One rank."""
    which, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("ringdp")
    hashes = {str(cell): on_this_rank(cell, STEPS) for cell in cells_between_hosts(which)}
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(hashes))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
