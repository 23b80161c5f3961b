#include <ATen/ATen.h>
#include <pybind11/stl.h>

#include "backend/errors.h"
#include "bindings/bind.h"
#include "zero/backward_watch.h"
#include "zero/leases.h"
#include "zero/norms.h"
#include "zero/shard_layout.h"
#include "zero/step_journal.h"
#include "zero/step_sink.h"
#include "zero/steps.h"
#include "zero/transient_storage.h"

namespace py = pybind11;

namespace ringdp::bindings {
namespace {

using zero::BackwardWatch;
using zero::Pieces;
using zero::ShardLayout;

py::list piece_tuples(const ShardLayout& self, int rank) {
  py::list all;
  for (const auto& p : backend::guarded([&] { return self.pieces(rank); })) {
    all.append(py::make_tuple(p.parameter, p.begin, p.length, p.bucket, p.offset));
  }
  return all;
}

zero::Steps sgd_steps(Pieces parameters, Pieces buffers, std::vector<bool> first, double lr, double momentum,
                      double dampening, double weight_decay, bool nesterov, bool maximize, bool fastest) {
  return zero::sgd_steps(std::move(parameters), std::move(buffers), std::move(first),
                         {lr, momentum, dampening, weight_decay, nesterov, maximize}, fastest);
}

zero::Steps adam_steps(Pieces parameters, Pieces exp_avg, Pieces exp_avg_sq, Pieces max_exp_avg_sq,
                       std::vector<double> step_numbers, double lr, double beta1, double beta2, double eps,
                       double weight_decay, bool decoupled, bool amsgrad, bool maximize, bool fastest) {
  return zero::adam_steps(std::move(parameters), std::move(exp_avg), std::move(exp_avg_sq), std::move(max_exp_avg_sq),
                          std::move(step_numbers), {lr, beta1, beta2, eps, weight_decay, decoupled, amsgrad, maximize},
                          fastest);
}

std::shared_ptr<reducer::ShardSink> step_sink(const std::vector<std::tuple<int64_t, zero::Steps, size_t>>& pieces) {
  std::vector<zero::PlacedPiece> placed;
  for (const auto& [offset, steps, piece] : pieces) placed.push_back({offset, steps, piece});
  return zero::step_sink(std::move(placed));
}

// Each piece: its offset in the shard, its state, its step number, and the settings in the order of adam_steps().
using AdamTuple = std::tuple<double, double, double, double, double, bool, bool, bool>;
using DevicePieceTuple = std::tuple<int64_t, Pieces, double, AdamTuple>;

std::shared_ptr<reducer::ShardSink> device_sink(at::Tensor parameters, const std::vector<DevicePieceTuple>& pieces) {
  std::vector<zero::DevicePiece> placed;
  for (const auto& [offset, state, number, settings] : pieces) {
    placed.push_back({offset, state, number, std::make_from_tuple<kernels::AdamSettings>(settings)});
  }
  return zero::device_sink(std::move(parameters), std::move(placed));
}

void take(reducer::ShardSink& self, int64_t begin, const at::Tensor& means) {
  TORCH_CHECK(means.is_contiguous() && means.scalar_type() == at::kFloat,
              "step sink: means must be contiguous float32");
  self.take(begin, means.numel(), means.const_data_ptr());
}

bool watch_backward(const std::vector<at::Tensor>& outputs, uint64_t since, py::function enter, py::function leave) {
  return BackwardWatch::over(outputs, since, without_gil<>(std::move(enter)), without_gil<>(std::move(leave)));
}

}  // namespace

void bind_zero(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("shard_block", [] { return zero::kShardBlock; });
  py::class_<ShardLayout>(m, "ShardLayout")
      .def(py::init([](std::vector<int64_t> lengths, reducer::Layout buckets, int ranks) {
             return backend::guarded([&] { return ShardLayout(std::move(lengths), std::move(buckets), ranks); });
           }),
           py::arg("lengths"), py::arg("buckets"), py::arg("ranks"))
      .def_property_readonly("ranks", &ShardLayout::ranks)
      .def_property_readonly("buckets", &ShardLayout::buckets)
      .def("padded", &ShardLayout::padded, py::arg("bucket"))
      .def("shard", &ShardLayout::shard, py::arg("bucket"))
      .def("offsets", &ShardLayout::offsets, py::arg("bucket"))
      .def("padding", &ShardLayout::padding, py::arg("rank"))
      .def("pieces", &piece_tuples, py::arg("rank"));
  m.def("without_memory", &zero::without_memory, py::arg("like"), py::arg("message"));
  m.def("take_memory", &zero::take_memory, py::arg("tensor"), py::arg("message"));
  m.def("give_memory", &zero::give_memory, py::arg("tensor"), py::arg("memory"));
  m.def("set_values", &zero::set_values, py::arg("parameters"), py::arg("values"));
  m.def("lent", &zero::lent, py::arg("memory"), py::arg("words"), py::arg("word"), py::arg("use"));
  m.def("is_returned", &zero::is_returned, py::arg("words"), py::arg("first"), py::arg("count"), py::arg("use"));
  m.def("next_node", &zero::next_node);
  m.def("watch_backward", &watch_backward, py::arg("outputs"), py::arg("since"), py::arg("enter"), py::arg("leave"));
  m.def("block_squares", &zero::block_squares, py::arg("piece"), no_gil);
  py::class_<zero::StepJournal>(m, "StepJournal")
      .def(py::init<at::Tensor, at::Tensor, at::Tensor>(), py::arg("done"), py::arg("in_flight"), py::arg("undo"))
      .def("undo", &zero::StepJournal::undo, py::arg("piece"), py::arg("arrays"))
      .def_property_readonly_static("block", [](const py::object&) { return zero::kJournalBlock; })
      .def_property_readonly_static("arrays", [](const py::object&) { return zero::kJournalArrays; });
  py::class_<zero::PieceSteps, std::shared_ptr<zero::PieceSteps>>(m, "PieceSteps")
      .def("run", &zero::PieceSteps::run, py::arg("pieces"), py::arg("gradients"), py::arg("journal") = nullptr,
           py::arg("numbers") = std::vector<int64_t>(), no_gil);
  py::class_<reducer::ShardSink, std::shared_ptr<reducer::ShardSink>>(m, "ShardSink")
      .def("take", &take, py::arg("begin"), py::arg("means"), no_gil)
      .def("wait", &reducer::ShardSink::wait, no_gil)
      .def_property_readonly("on_device", [](const reducer::ShardSink& self) { return self.on_device() != nullptr; });
  m.def("step_sink", &step_sink, py::arg("pieces"));
  m.def("device_sink", &device_sink, py::arg("parameters"), py::arg("pieces"));
  m.def("sgd_steps", &sgd_steps, py::arg("parameters"), py::arg("buffers"), py::arg("first"), py::kw_only(),
        py::arg("lr"), py::arg("momentum"), py::arg("dampening"), py::arg("weight_decay"), py::arg("nesterov"),
        py::arg("maximize"), py::arg("fastest"));
  m.def("adam_steps", &adam_steps, py::arg("parameters"), py::arg("exp_avg"), py::arg("exp_avg_sq"),
        py::arg("max_exp_avg_sq"), py::arg("step_numbers"), py::kw_only(), py::arg("lr"), py::arg("beta1"),
        py::arg("beta2"), py::arg("eps"), py::arg("weight_decay"), py::arg("decoupled"), py::arg("amsgrad"),
        py::arg("maximize"), py::arg("fastest"));
}

}  // namespace ringdp::bindings
