"""What is expected of torch's distributed tests: how many pass, and which cannot apply to any backend but gloo."""

from __future__ import annotations

# torch minor -> ranks -> how many tests pass at least; below it, torch has skipped what it should have run
LEAST_PASSED: dict[str, dict[int, int]] = {"2.13": {2: 87}}

_MONITORED = "dist.monitored_barrier refuses every backend whose name is not gloo"
NOT_APPLICABLE: dict[str, str] = {
    "test_monitored_barrier_gloo": _MONITORED,
    "test_monitored_barrier_gloo_subgroup": _MONITORED,
    "test_monitored_barrier_failure_order": _MONITORED,
    "test_monitored_barrier_wait_all_ranks": _MONITORED,
    "test_ddp_logging_data_cpu": "torch's DDP logger says 'custom' where the test wants the backend's name",
}
ABOUT_STOCK_DDP = {"test_ddp_logging_data_cpu"}  # applies to ringdp's class


def least_passed(torch_version: str, ranks: int) -> int:
    """0 where nobody has counted yet."""
    minor = ".".join(torch_version.split(".")[:2])
    return LEAST_PASSED.get(minor, {}).get(ranks, 0)
