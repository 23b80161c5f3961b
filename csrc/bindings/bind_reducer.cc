#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/python_comm_hook.h>

#include "bindings/bind.h"
#include "reducer/error_messages.h"
#include "reducer/reducer.h"

namespace py = pybind11;

namespace ringdp::bindings {
namespace {

using reducer::Mean;
using reducer::Options;
using reducer::Reducer;
using reducer::Reduction;

reducer::Layout make_layout(const std::vector<std::tuple<int64_t, int64_t, bool>>& parts,
                            const std::vector<size_t>& order, const std::vector<int64_t>& limits, bool hard_limits) {
  std::vector<reducer::Part> known;
  for (const auto& [bytes, kind, own_bucket] : parts) known.push_back({bytes, kind, own_bucket});
  return reducer::make_layout(known, order, limits, hard_limits);
}

// The fields by name; an unknown name is an AttributeError.
std::unique_ptr<Options> options_of(const py::kwargs& fields) {
  auto options = std::make_unique<Options>();
  const py::object view = py::cast(options.get(), py::return_value_policy::reference);
  for (const auto& [name, value] : fields) py::setattr(view, name, value);
  return options;
}

py::dict bucket_dict(const Reducer::BucketInfo& info) {
  py::dict d;
  d["indices"] = info.indices;
  d["bytes"] = info.bytes;
  d["memory_bytes"] = info.memory_bytes;
  d["dtype"] = info.dtype;
  d["device"] = info.device;
  d["sparse"] = info.sparse;
  d["of_leaves"] = info.of_leaves;
  d["shared"] = info.shared;
  return d;
}

// Calls `copy` without the GIL, because a thread that holds the reducer's lock may be waiting for the GIL.
template <class Copy>
auto unlocked(Copy copy) {
  const py::gil_scoped_release release;
  return copy();
}

py::list bucket_dicts(const Reducer& self) {
  py::list all;
  for (const auto& info : unlocked([&] { return self.buckets(); })) all.append(bucket_dict(info));
  return all;
}

std::vector<std::pair<size_t, std::string>> unaveraged(const Reducer& self) {
  using Cause = reducer::Unaveraged::Cause;
  std::vector<std::pair<size_t, std::string>> all;
  for (const auto& [index, cause] : self.unaveraged()) {
    all.emplace_back(index, cause == Cause::kKept ? "kept" : cause == Cause::kLate ? "late" : "foreign");
  }
  return all;
}

py::dict dict_of(const reducer::Timeline& t) {
  py::list buckets;
  for (const auto& b : t.buckets) buckets.append(py::make_tuple(b.ready, b.launched, b.done));
  py::dict d;
  d["step"] = t.step;
  d["forward"] = t.forward;
  d["backward"] = t.backward;
  d["computed"] = t.computed;
  d["finished"] = t.finished;
  d["sequence"] = t.sequence;
  d["buckets"] = buckets;
  return d;
}

py::tuple taken_samples(Reducer& self) {
  const Reducer::Sampled sampled = unlocked([&] { return self.take_sampled(); });
  py::list found;
  for (const auto& [at, part] : sampled.found) {
    found.append(py::make_tuple(at.pass, at.ranks, at.has_majority, part.first.parameter, part.first.element,
                                part.last.parameter, part.last.element));
  }
  return py::make_tuple(sampled.is_carried, sampled.stepped_alone, sampled.compared, sampled.spent_ns, found);
}

}  // namespace

void bind_reducer(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("make_layout", &make_layout, py::arg("parts"), py::arg("order"), py::arg("limits"),
        py::arg("hard_limits") = false);
  m.def("came_late", &reducer::came_late, py::arg("name"));
  m.def("covered", &reducer::covered<double>, py::arg("intervals"), py::arg("since"));
  m.def("odd_ranks", &reducer::odd_ranks, py::arg("by_rank"));

  py::class_<Reduction, FreedWithoutGil<Reduction>>(m, "Reduction").def("finish", &Reduction::finish, no_gil);
  py::class_<Mean, FreedWithoutGil<Mean>>(m, "Mean")
      .def(py::init([](const Reducer::GroupPtr& group, const at::Device& device, bool rank_order) {
             return reducer::make_mean(group, device, rank_order).release();
           }),
           py::arg("group"), py::arg("device"), py::arg("rank_order") = true)
      .def(
          "start",
          [](Mean& self, const at::Tensor& flat, double divisor) {
            return FreedWithoutGil<Reduction>(self.start(flat, divisor, {}).release());
          },
          py::arg("flat"), py::arg("divisor"), no_gil)
      .def(
          "start_scatter",
          [](Mean& self, const at::Tensor& flat, double divisor) {
            return FreedWithoutGil<Reduction>(self.start_scatter(flat, divisor, {}).release());
          },
          py::arg("flat"), py::arg("divisor"), no_gil)
      .def_property_readonly("name", &Mean::name);

  py::class_<Options>(m, "ReducerOptions")
      .def(py::init(&options_of))
      .def_readwrite("bucket_limits", &Options::bucket_limits)
      .def_readwrite("find_unused", &Options::find_unused)
      .def_readwrite("gradient_as_bucket_view", &Options::gradient_as_bucket_view)
      .def_readwrite("batched_copy", &Options::batched_copy)
      .def_readwrite("skip_unused", &Options::skip_unused)
      .def_readwrite("own_bucket_bytes", &Options::own_bucket_bytes)
      .def_readwrite("overlap", &Options::overlap)
      .def_readwrite("micro_batches", &Options::micro_batches)
      .def_readwrite("shard_block", &Options::shard_block)
      .def_readwrite("rank_order", &Options::rank_order)
      .def_readwrite("check_drift", &Options::check_drift)
      .def_readwrite("made_locally", &Options::made_locally)
      .def_readwrite("layout", &Options::layout);
  py::class_<Reducer, std::shared_ptr<Reducer>>(m, "Reducer")
      .def(py::init([](std::vector<at::Tensor> parameters, std::vector<std::string> names, std::vector<bool> sparse,
                       Reducer::GroupPtr group, Options options) {
             return std::shared_ptr<Reducer>(new Reducer(std::move(parameters), std::move(names), std::move(sparse),
                                                         std::move(group), std::move(options)),
                                             DeleteWithoutGil());
           }),
           py::arg("parameters"), py::arg("names"), py::arg("sparse"), py::arg("group"), py::arg("options"), no_gil)
      .def(
          "register_comm_hook",
          [](Reducer& self, py::object state, py::object hook, bool always, std::chrono::milliseconds patience) {
            auto held = std::make_unique<c10d::PythonCommHook>(std::move(state), std::move(hook));
            const py::gil_scoped_release release;
            self.register_comm_hook(std::move(held), always, patience);
          },
          py::arg("state"), py::arg("hook"), py::arg("always") = true, py::arg("patience") = std::chrono::minutes(10))
      .def("use_comm_hook", &Reducer::use_comm_hook, py::arg("used"), no_gil)
      .def("set_after_backward",
           [](Reducer& self, py::function call) {
             auto after = without_gil(std::move(call));
             const py::gil_scoped_release release;
             self.set_after_backward(std::move(after));
           })
      .def(
          "set_on_shard",
          [](Reducer& self, py::function sinks, py::function call) {
            auto make_sinks = without_gil<Reducer::Sinks>(std::move(sinks));
            auto on_shard = without_gil<void, size_t, const at::Tensor&>(std::move(call));
            const py::gil_scoped_release release;
            self.set_on_shard(std::move(make_sinks), std::move(on_shard));
          },
          py::arg("sinks"), py::arg("on_shard"))
      .def("set_agreed", &Reducer::set_agreed, no_gil)
      .def("differs", &Reducer::differs, no_gil)
      .def("set_gradient_dtype", &Reducer::set_gradient_dtype, no_gil)
      .def("set_static_graph", &Reducer::set_static_graph, no_gil)
      .def("set_optimizer_in_backward", &Reducer::set_optimizer_in_backward, no_gil)
      .def("prepare_for_forward", &Reducer::prepare_for_forward, no_gil)
      .def("prepare_for_backward", &Reducer::prepare_for_backward, no_gil)
      .def(
          "autograd_hook", [](Reducer& self, size_t index) { self.autograd_hook(index); }, no_gil)
      .def("delay_all_reduce", &Reducer::delay_all_reduce, no_gil)
      .def("backward_without_loss", &Reducer::backward_without_loss, no_gil)
      .def("check_finished", &Reducer::check_finished, no_gil)
      .def("is_static_graph_first_pass", &Reducer::is_static_graph_first_pass, no_gil)
      .def("stop_shared_allocation", &Reducer::stop_shared_allocation, no_gil)
      .def("keep_gradients", &Reducer::keep_gradients, no_gil)
      .def("passes", &Reducer::passes, no_gil)
      .def("may_be_unaveraged", &Reducer::may_be_unaveraged, no_gil)
      .def("unaveraged", &unaveraged, no_gil)
      .def("expects_gradients", &Reducer::expects_gradients, no_gil)
      .def("shadow_backward", &Reducer::shadow_backward, no_gil)
      .def("set_divisor_work", &Reducer::set_divisor_work, no_gil)
      .def("set_divisor", &Reducer::set_divisor, no_gil)
      .def("rebuild_buckets", &Reducer::rebuild_buckets, no_gil)
      .def("assume_arrival", &Reducer::assume_arrival, no_gil)
      .def("reset", &Reducer::reset, no_gil)
      .def("set_group", &Reducer::set_group, no_gil)
      .def("keep_layout", &Reducer::keep_layout, no_gil)
      .def("remove_hooks", &Reducer::remove_hooks, no_gil)
      .def("set_leaf_stand_ins", &Reducer::set_leaf_stand_ins, no_gil, py::arg("stand_ins"))
      .def("set_group_of_leaf_sums", &Reducer::set_group_of_leaf_sums, no_gil, py::arg("group").none(true),
           py::arg("along_tree"))
      .def("release_memory_of_leaf_sums", &Reducer::release_memory_of_leaf_sums, no_gil)
      .def("expect_leaves", &Reducer::expect_leaves, no_gil, py::arg("leaves"), py::arg("divisor"))
      .def("begin_leaf", &Reducer::begin_leaf, no_gil, py::arg("leaf"))
      .def("share_gradients_of_leaf", &Reducer::share_gradients_of_leaf, no_gil)
      .def("add_leaf", &Reducer::add_leaf, no_gil)
      .def("end_leaf_of_round", &Reducer::end_leaf_of_round, no_gil)
      .def("add_leaf_round", &Reducer::add_leaf_round, no_gil, py::arg("leaves"))
      .def("abandon_leaf", &Reducer::abandon_leaf, no_gil)
      .def("send_leaves", &Reducer::send_leaves, no_gil)
      .def("average_leaves", &Reducer::average_leaves, no_gil, py::arg("leaves"), py::arg("used"), py::arg("divisor"),
           py::arg("as_sent"), py::arg("keep"))
      .def("changed_in_leaves", &Reducer::changed_in_leaves, no_gil)
      .def("drop_leaves", &Reducer::drop_leaves, no_gil)
      .def("used_in_leaves", &Reducer::used_in_leaves, no_gil)
      .def("leaves", &Reducer::leaves, no_gil)
      .def("leaf_bytes", &Reducer::leaf_bytes, no_gil)
      .def("buckets", &bucket_dicts)
      .def("timeline", [](const Reducer& self) { return dict_of(unlocked([&] { return self.timeline(); })); })
      .def("keep_timelines", &Reducer::keep_timelines, no_gil, py::arg("most"))
      .def("sample_parameters", &Reducer::sample_parameters, no_gil, py::arg("parameters"))
      .def("note_stepped_alone", &Reducer::note_stepped_alone, no_gil)
      .def("set_sample_stride", &Reducer::set_sample_stride, no_gil, py::arg("stride"))
      .def("take_sampled", &taken_samples)
      .def("has_found", &Reducer::has_found, no_gil)
      .def("layout", &Reducer::layout, no_gil)
      .def("shards", &Reducer::shards, no_gil)
      .def("used", &Reducer::used, no_gil)
      .def("drop_shards", &Reducer::drop_shards, no_gil)
      .def("zero_shards", &Reducer::zero_shards, no_gil)
      .def(
          "keep_shards", [](Reducer& self) { self.set_on_shard({}, {}); }, no_gil)
      .def("arrival_order", &Reducer::arrival_order, no_gil)
      .def("unused", &Reducer::unused, no_gil)
      .def("stats", &Reducer::stats, no_gil)
      .def("mean_name", &Reducer::mean_name, no_gil)
      .def("error", &Reducer::error, no_gil);
}

}  // namespace ringdp::bindings
