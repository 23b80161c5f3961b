"""The logging data of torch's DistributedDataParallel: the same keys, from ringdp's reducer.

torch's class calls the methods with a leading underscore; `_get_ddp_logging_data` of the wrapper shows the result.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from ringdp.ddp.reducer import Reducer

DEFAULT_SAMPLE_RATE = 100
_ALWAYS_SAMPLED = 10
_TYPE_NAMES = {torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half"}
_TYPE_NAMES |= {torch.bfloat16: "c10::BFloat16", torch.complex64: "c10::complex<float>"}
_TYPE_NAMES |= {torch.complex128: "c10::complex<double>"}
_ENVIRONMENT = ("MASTER_PORT", "MASTER_ADDR", "TORCH_DISTRIBUTED_DEBUG", "CUDA_VISIBLE_DEVICES")
_GLOO_ENVIRONMENT = ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT")
_GLOO_THREADS = 2


class Logger:
    """The log of one wrapper. After ten steps, run-time figures are taken in one of `sample_rate` steps."""

    def __init__(self, reducer: Reducer, group: dist.ProcessGroup) -> None:
        self.sample_rate = DEFAULT_SAMPLE_RATE
        self._reducer = reducer
        self._strings: dict[str, str] = {}
        self._numbers: dict[str, int] = {"world_size": group.size(), "rank": group.rank()}
        self._samples = 0
        self._sums: dict[str, int] = {}
        self._strings["backend_name"] = group._get_backend(reducer.parameters[0].device).name()

    def set_construction_data_and_log(
        self,
        module_name: str,
        device_ids: Sequence[int],
        output_device: int,
        broadcast_buffers: bool,
        has_sync_bn: bool,
        static_graph: bool,
        **settings: int,
    ) -> None:
        """What is known at construction; `settings`: further numbers."""
        parameters = self._reducer.parameters
        self._strings |= {
            "module_name": module_name,
            "device_ids": ", ".join(map(str, device_ids)),
            "dtypes": ", ".join(sorted({_TYPE_NAMES.get(p.dtype, str(p.dtype)) for p in parameters})),
            "bucket_sizes": self._bucket_sizes(),
        }
        self._numbers |= {
            "output_device": output_device,
            "broadcast_buffers": int(broadcast_buffers),
            "has_sync_bn": int(has_sync_bn),
            "static_graph": int(static_graph),
            "is_multi_device_module": int(len({p.device for p in parameters}) > 1),
            "total_parameter_size_bytes": sum(p.nbytes for p in parameters),
            "num_parameter_tensors": len(parameters),
            **{name: int(value) for name, value in settings.items()},
        }
        gloo = self._strings["backend_name"] == "gloo"
        for variable in (*_ENVIRONMENT, *(_GLOO_ENVIRONMENT if gloo else ())):
            self._strings[variable.lower()] = os.environ.get(variable, "N/A")
        if gloo:
            self._numbers["gloo_num_threads"] = _GLOO_THREADS

    def set_runtime_stats_and_log(self) -> None:
        """At the beginning of each synchronised forward pass: the figures of the previous step, if it is sampled."""
        step = self._reducer.timeline()["step"]
        if step == 0 or (step > _ALWAYS_SAMPLED and step % self.sample_rate):
            return
        numbers = self._reducer.stats()
        unused = self._reducer.unused()
        self._numbers |= {
            "iteration": step,
            "num_buckets_reduced": numbers["launched"],
            "unused_parameter_size": sum(self._reducer.parameters[index].nbytes for index in unused),
            "can_set_static_graph": int(not numbers["unused_changed"]),
        }
        order = map(str, self._reducer.arrival_order())
        self._strings["prev_iteration_grad_ready_order_indices"] = ", ".join(order)
        self._note_rebuilt(numbers["rebuilt"])
        self._note_times()

    def _note_rebuilt(self, rebuilt: int) -> None:
        self._numbers["has_rebuilt_buckets"] = rebuilt
        if not rebuilt:
            return
        self._strings["rebuilt_bucket_sizes"] = self._bucket_sizes()
        indices = (" ".join(map(str, bucket["indices"])) for bucket in self._reducer.buckets())
        self._strings["rebuilt_per_bucket_param_indices"] = ", ".join(indices)

    def _note_times(self) -> None:
        """Nanoseconds, as torch's; communication lasts from the first launch until every .grad is in place."""
        raw = self._reducer.timeline()
        launches = [launched for _, launched, _ in raw["buckets"] if launched]
        if not (launches and raw["finished"]):
            return
        first = min(launches)
        times = {
            "forward_compute_time": raw["backward"] - raw["forward"],
            "backward_compute_time": raw["computed"] - raw["backward"],
            "backward_comm_time": raw["finished"] - first,
            "backward_compute_comm_overlap_time": max(0, raw["computed"] - first),
        }
        self._samples += 1
        for name, value in times.items():
            self._sums[name] = self._sums.get(name, 0) + value
            self._numbers[name] = value
            self._numbers[f"avg_{name}"] = self._sums[name] // self._samples
        self._numbers |= {
            "forward_compute_time_start": raw["forward"],
            "backward_compute_time_start": raw["backward"],
            "backward_comm_time_start": first,
            "backward_compute_time_end": raw["computed"],
            "backward_comm_time_end": raw["finished"],
        }

    def set_error_and_log(self, message: str) -> None:
        """The wrapper is about to raise this, or its reducer has."""
        self._numbers["has_error"] = 1
        self._numbers["iteration"] = self._reducer.timeline()["step"]
        self._strings["error"] = message

    def _bucket_sizes(self) -> str:
        return ", ".join(str(bucket["bytes"]) for bucket in self._reducer.buckets())

    def _get_ddp_logging_data(self) -> Any:
        if error := self._reducer.error():
            self.set_error_and_log(error)
        return SimpleNamespace(strs_map=dict(self._strings), ints_map=dict(self._numbers))

    def _set_comm_hook_name(self, name: str) -> None:
        self._strings["comm_hook"] = name

    def _set_uneven_input_join(self) -> None:
        self._numbers["join_uneven_inputs"] = 1

    def _set_static_graph(self) -> None:
        self._numbers["static_graph"] = 1
