"""Runs torch's own distributed tests, of the torch that is installed, on a backend.

    python -m tests.conformance --world-size 2 --filter all_reduce
    python -m tests.conformance --device cuda                          # what one GPU is enough for: one rank

Exit status 1 when a test failed, or fewer passed than are known to (only where all were run).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent


# torch gives every rank a GPU of its own, so one GPU is enough for one rank. Ranks are forked: nothing may start CUDA
# before, neither torch, which then asks NVML for devices, nor numba.
DEVICES = {
    "cpu": {"CUDA_VISIBLE_DEVICES": ""},
    "cuda": {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "NUMBA_DISABLE_CUDA": "1"},
}


def prepare(backend: str, ddp: str, device: str, ranks: int, timeout_s: int) -> None:
    """What torch's module reads when it is imported, here and in the ranks."""
    os.environ.update(
        DEVICES[device],
        CONFORMANCE_BACKEND=backend,
        CONFORMANCE_DDP=ddp,
        CONFORMANCE_DEVICE=device,
        WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        OMP_NUM_THREADS="1",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(timeout_s),
    )
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(HERE))


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="ringdp")
    parser.add_argument("--ddp", choices=("stock", "ringdp"), default="stock", help="whose DistributedDataParallel")
    parser.add_argument("--device", choices=tuple(DEVICES), default="cpu", help="cuda: the tests of tensors there")
    parser.add_argument("--world-size", type=int, help="default 2, with --device cuda 1")
    parser.add_argument("--filter", help="regular expression to be found in the test's name (--device cuda: cuda)")
    parser.add_argument("--timeout", type=int, default=60, help="seconds a test may take (default 60)")
    parser.add_argument("--list", action="store_true", help="names of the tests that would be run")
    parser.add_argument("--json", action="store_true", help="one object per test, then one with the counts")
    chosen = parser.parse_args()
    chosen.world_size = chosen.world_size or (1 if chosen.device == "cuda" else 2)
    if chosen.filter is None:
        chosen.filter = "cuda" if chosen.device == "cuda" else ""
    return chosen


def main() -> int:
    """Runs and prints, test by test."""
    chosen = options()
    prepare(chosen.backend, chosen.ddp, chosen.device, chosen.world_size, chosen.timeout)
    import torch

    if chosen.device == "cuda" and not torch.cuda.is_available():
        sys.exit("tests.conformance: --device cuda: no GPU that torch can use")
    import torch_suite
    from torch_suite import least_passed

    names = torch_suite.names(chosen.filter)
    if chosen.list:
        print("\n".join(name for name in names if torch_suite.known_outcome(name) is None))
        return 0
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="conformance-") as logs:
        suite = torch_suite.Suite(Path(logs), chosen.timeout)
        for name in names:
            result = suite.run(name)
            counts[result.outcome] += 1
            if chosen.json:
                print(json.dumps(asdict(result)), flush=True)
            elif result.seconds or result.outcome == torch_suite.NOT_FOR_US:
                print(f"{result.outcome:<8} {result.seconds:5.1f} s  {name}  {result.why}".rstrip(), flush=True)
    least = 0 if chosen.filter or chosen.backend != "ringdp" else least_passed(torch.__version__, chosen.world_size)
    head = {"backend": chosen.backend, "world_size": chosen.world_size, "torch": torch.__version__, "least": least}
    print(json.dumps({**head, **counts}) if chosen.json else f"{dict(counts)} {head}", flush=True)
    return int(counts[torch_suite.FAILED] > 0 or counts[torch_suite.PASSED] < max(1, least))


if __name__ == "__main__":
    sys.exit(main())
