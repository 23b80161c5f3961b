#include <stdexcept>
#include <string>
#include <vector>

#include "base/settings.h"
#include "bindings/bind.h"
#include "device/runtime/library.h"

namespace py = pybind11;

namespace ringdp::bindings {
namespace {

py::list devices_of(const gpu::Functions& core, int count) {
  py::list devices;
  for (int index = 0; index < count; ++index) {
    rd_gpu_device device{};
    if (core.describe(index, &device) != 0) throw std::runtime_error(core.error());
    py::dict d;
    d["name"] = device.name;
    d["multiprocessors"] = device.multiprocessors;
    d["architecture"] = std::to_string(device.major) + "." + std::to_string(device.minor);
    d["memory_bytes"] = device.memory_bytes;
    d["waits_on_streams"] = device.waits_on_streams != 0;
    d["shares_fds"] = device.shares_fds != 0;
    devices.append(d);
  }
  return devices;
}

std::string kernels_of(const gpu::Functions& core) {
  std::vector<char> text(size_t{1} << 16);
  return core.kernels(text.data(), text.size()) == 0 ? text.data() : core.error();
}

// `why_none`: None, or why there is no device.
py::dict gpu_report() {
  const gpu::Library& library = gpu::library();
  py::dict d;
  d["library"] = library.opened ? py::object(py::str(library.path)) : py::none();
  d["why_none"] = library.why_not;
  d["devices"] = py::list();
  d["kernels"] = "";
  d["nccl"] = 0;
  if (!library.opened) return d;
  const gpu::Functions& core = library.functions;
  int count = 0, nccl = 0;
  const int result = core.count(&count);
  d["why_none"] = result != 0 || count == 0 ? py::object(py::str(core.error())) : py::none();
  d["devices"] = devices_of(core, count);
  if (count > 0) d["kernels"] = kernels_of(core);
  const rd_gpu_nccl_functions* functions = nullptr;
  if (core.nccl(read_env("RINGDP_NCCL").value_or("").c_str(), &nccl, &functions) == 0) d["nccl"] = nccl;
  return d;
}

}  // namespace

void bind_gpu(py::module_& m) { m.def("gpu_report", &gpu_report); }

}  // namespace ringdp::bindings
