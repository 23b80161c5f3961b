#include "backend/errors.h"
#include "base/text.h"
#include "bindings/bind.h"
#include "device/kernel/work.h"
#include "device/plan/catalog.h"
#include "device/runtime/placement.h"

namespace py = pybind11;

namespace ringdp::bindings {
namespace {

struct Made {
  plan::DevicePlan plan;
  int blocks;  // that give every thread a pack
};

Made make(const std::string& collective, const std::string& algorithm, const std::string& dtype, const std::string& op,
          int rank, int world, int64_t count, int root, int64_t segment_bytes) {
  return backend::guarded([&] {
    plan::Problem problem;
    problem.what = plan::collective_named(collective);
    problem.dtype = enumerator_named<DType>(dtype, kDTypeCount, "a dtype");
    problem.op = enumerator_named<ReduceOp>(op, kReduceOpCount, "a reduce operation");
    problem.rank = rank;
    problem.world = world;
    problem.count = count;
    problem.root = root;
    problem.segment_bytes = segment_bytes;
    const auto chosen =
        enumerator_named<plan::DeviceAlgorithm>(algorithm, plan::kDeviceAlgorithmCount, "an algorithm of device plans");
    return Made{plan::make_device_plan(chosen, problem), gpu::blocks_of(problem, chosen, gpu::kMaxBlocks)};
  });
}

// The bytes of plain data, as a structure of the C interface takes them.
py::bytes bytes_of(const void* data, size_t bytes) { return {static_cast<const char*>(data), bytes}; }

py::dict device_plan(const std::string& collective, const std::string& algorithm, const std::string& dtype,
                     const std::string& op, int rank, int world, int64_t count, int root, int64_t segment_bytes) {
  const auto [plan, blocks] = make(collective, algorithm, dtype, op, rank, world, count, root, segment_bytes);
  const plan::DeviceTraffic traffic = plan::traffic_of(plan);
  py::dict d;
  d["algorithm"] = plan.algorithm;
  d["element"] = static_cast<int>(plan.dtype);
  d["reduce"] = static_cast<int>(plan.op);
  d["input_bytes"] = plan.input * size_of(plan.dtype);
  d["output_bytes"] = plan.output * size_of(plan.dtype);
  d["stage_bytes"] = plan.stage_bytes;
  d["pushed_bytes"] = plan.pushed_bytes;
  d["read_bytes"] = traffic.read_local + traffic.read_remote;
  d["written_bytes"] = traffic.written_local + traffic.written_remote;
  d["blocks"] = blocks;
  d["steps"] = plan.steps.size();
  d["packed"] = bytes_of(plan.steps.data(), plan.steps.size() * sizeof(plan::DeviceStep));
  d["text"] = plan::text_of(plan);
  return d;
}

py::bytes device_adam_scalars(double lr, double beta1, double beta2, double eps, double weight_decay, bool decoupled,
                              double number) {
  kernels::AdamSettings settings;
  settings.lr = lr;
  settings.beta1 = beta1;
  settings.beta2 = beta2;
  settings.eps = eps;
  settings.weight_decay = weight_decay;
  settings.decoupled = decoupled;
  const kernels::AdamScalars scalars = kernels::scalars_of(settings, number);
  return bytes_of(&scalars, sizeof scalars);
}

py::dict device_sizes() {
  py::dict d;
  d["Work"] = sizeof(gpu::Work);
  d["AdamWork"] = sizeof(gpu::AdamWork);
  d["AdamScalars"] = sizeof(kernels::AdamScalars);
  d["Epoch"] = sizeof(gpu::Epoch);
  d["Expired"] = sizeof(gpu::Expired);
  d["Flags"] = sizeof(gpu::Flags);
  d["Step"] = sizeof(plan::DeviceStep);
  return d;
}

}  // namespace

void bind_device_plan(py::module_& m) {
  m.def("device_plan", &device_plan, py::arg("collective"), py::arg("algorithm") = "direct",
        py::arg("dtype") = "float32", py::arg("op") = "SUM", py::arg("rank") = 0, py::arg("world") = 2,
        py::arg("count") = 1024, py::arg("root") = 0, py::arg("segment_bytes") = plan::Problem{}.segment_bytes);
  m.def("device_adam_scalars", &device_adam_scalars, py::arg("lr"), py::arg("beta1"), py::arg("beta2"), py::arg("eps"),
        py::arg("weight_decay"), py::arg("decoupled"), py::arg("number"));
  m.def("device_sizes", &device_sizes);
  m.def("device_blocks", &gpu::blocks_for, py::arg("multiprocessors"), py::arg("ranks"));
}

}  // namespace ringdp::bindings
