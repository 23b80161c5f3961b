#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "backend/allocation.h"
#include "backend/backend.h"
#include "backend/errors.h"
#include "backend/process.h"
#include "bindings/bind.h"
#include "device/torch/device_collectives.h"
#include "kernels/checksum.h"
#include "reducer/reduction.h"
#include "trace/dump.h"

namespace py = pybind11;

namespace ringdp::bindings {
namespace {

using backend::Backend;
using backend::GroupOptions;

py::dict counters_of(const comm::Group& group) {
  const trace::Totals t = group.counters();
  py::dict d;
  d["collectives"] = t.collectives;
  d["steps"] = t.steps;
  d["rounds"] = t.rounds;
  d["wire_bytes_sent"] = t.wire_bytes_sent;
  d["wire_bytes_received"] = t.wire_bytes_received;
  d["header_bytes_sent"] = t.header_bytes_sent;
  d["memory_bytes_read"] = t.memory_bytes_read;
  d["memory_bytes_written"] = t.memory_bytes_written;
  return d;
}

py::dict stats_of(const comm::Group& group) {
  py::dict d;
  d["name"] = group.name();
  d["rank"] = group.rank();
  d["world"] = group.world();
  d["submitted"] = group.sequence();
  d["counters"] = counters_of(group);
  d["delays_ns"] = group.delays();
  const auto error = group.error();
  d["error"] = error ? py::object(py::str(error->what())) : py::none();
  return d;
}

// Counters of the groups that exist in this process, and of its recorder.
py::dict stats() {
  py::list groups;
  for (const auto& group : backend::remembered()) groups.append(stats_of(*group));
  const trace::Ring& ring = trace::recorder().ring();
  py::dict d;
  d["groups"] = groups;
  d["events_written"] = ring.written();
  d["events_lost"] = ring.lost();
  d["events_kept"] = ring.capacity();
  return d;
}

}  // namespace

void bind_backend(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  const py::module_ c10d = py::module_::import("torch._C._distributed_c10d");  // registers the base classes

  py::class_<GroupOptions, c10d::Backend::Options, c10::intrusive_ptr<GroupOptions>>(m, "Options")
      .def(py::init([](std::chrono::milliseconds timeout) { return c10::make_intrusive<GroupOptions>(timeout); }),
           py::arg("timeout") = kBackendDefaultTimeout)
      .def("set", &GroupOptions::set)
      .def("set_tuned", &GroupOptions::set_tuned)
      .def("get", &GroupOptions::get)
      .def("fields", &GroupOptions::fields)
      .def("__copy__", &GroupOptions::copy)
      .def("__deepcopy__", [](const GroupOptions& self, const py::dict&) { return self.copy(); });

  m.def("leave_all", &backend::leave_all, no_gil);
  m.def("leave_groups", &backend::leave_groups, no_gil);
  m.def("stats", &stats);
  m.def(
      "write_trace",
      [](const std::string& folder) { backend::guarded([&] { trace::write_dump(trace::recorder(), folder); }); },
      py::arg("folder"), no_gil);
  m.def(
      "name_members",
      [](int own, std::vector<int> members, std::string world) {
        trace::recorder().name_members(own, std::move(members), std::move(world));
      },
      py::arg("own"), py::arg("members"), py::arg("world"));
  m.def(
      "note_world",
      [](uint64_t epoch, int ranks, int64_t step, int64_t ns) {
        trace::Event event;
        event.kind = trace::Kind::kRegrouped;
        event.seq = epoch;
        event.peer = ranks;
        event.bytes = step;
        event.ns = ns;
        trace::recorder().note(event);
      },
      py::arg("epoch"), py::arg("ranks"), py::arg("step"), py::arg("ns"));
  m.def(
      "checksum",
      [](const at::Tensor& tensor) {
        TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous(), "checksum: the tensor must be contiguous, on the CPU");
        return kernels::checksum(tensor.const_data_ptr(), tensor.nbytes());
      },
      py::arg("tensor"), no_gil);
  m.def(
      "serve_device", [](const std::string& type) { backend::serve(c10::Device(type).type()); }, py::arg("type"));
  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(m, "Backend")
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& name,
                       const c10::intrusive_ptr<GroupOptions>& options) {
             return c10::make_intrusive<Backend>(store, rank, size, name, options);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("name"), py::arg("options"), no_gil)
      .def_static("decline", &Backend::decline, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("why"),
                  no_gil)
      .def_property_readonly("options", &Backend::options)
      .def(
          "reduce_div",
          [](Backend& self, const at::Tensor& tensor, double divisor, bool async_op) {
            return self.reduce_div(tensor, tensor, divisor, async_op, {});
          },
          py::arg("tensor"), py::arg("divisor"), py::arg("async_op") = true, no_gil)
      .def("why_no_step", &Backend::why_no_step, py::arg("device"), no_gil)
      .def(
          "reduce_scatter_step",
          [](Backend& self, const at::Tensor& gradients, double divisor, const reducer::ShardSink& sink) {
            TORCH_CHECK(sink.on_device() != nullptr, "reduce_scatter_step: the sink is of the CPU");
            return self.reduce_scatter_step(gradients, divisor, *sink.on_device(), {});
          },
          py::arg("gradients"), py::arg("divisor"), py::arg("sink"), no_gil)
      .def(
          "reduce_scatter_div",
          [](Backend& self, const at::Tensor& output, const at::Tensor& input, double divisor, bool async_op) {
            return self.reduce_scatter_div(output, input, divisor, async_op, {}, {});
          },
          py::arg("output"), py::arg("input"), py::arg("divisor"), py::arg("async_op") = true, no_gil)
      .def("gather_whole", &Backend::gather_whole, py::arg("whole"), py::arg("async_op") = true, no_gil)
      .def(
          "share_memory",
          [](Backend& self, int64_t elements, at::ScalarType dtype,
             const at::Device& device) -> std::optional<at::Tensor> {
            const at::Tensor made = self.share_memory(elements, at::TensorOptions().dtype(dtype).device(device));
            return made.defined() ? std::optional<at::Tensor>(made) : std::nullopt;
          },
          py::arg("elements"), py::arg("dtype"), py::arg("device"), no_gil)
      .def("reclaim_memory", &Backend::reclaim_memory, py::arg("device"), no_gil)
      .def("shares", &Backend::shares, py::arg("tensor"))
      .def("maps_all_heaps", &Backend::maps_all_heaps)
      .def("heap_view", &Backend::heap_view, py::arg("rank"), py::arg("offset"), py::arg("bytes") = std::nullopt)
      .def("place_in_heap", &Backend::place_in_heap, py::arg("tensor"))
      .def("keep_heap_pages", &Backend::keep_heap_pages)
      .def("heap_room", &Backend::heap_room)
      .def("heap_offset", &Backend::heap_offset, py::arg("tensor"))
      // torch calls it on ranks outside a new group when supports_splitting is true and a device is bound.
      .def("perform_nocolor_split", [](const Backend&, const at::Device&) {})
      .def("enter_allocation_scope", [](Backend& self) { backend::enter_allocation_scope(self.heap_allocator()); })
      .def_static("leave_allocation_scope", &backend::leave_allocation_scope)
      .def("counters", [](const Backend& self) { return counters_of(self.group()); })
      .def("describe", &Backend::description);
}

}  // namespace ringdp::bindings
