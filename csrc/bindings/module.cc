// ringdp._C: the settings, and the list of what else is bound.
#include "base/error.h"
#include "base/settings.h"
#include "bindings/bind.h"
#include "kernels/fold.h"

namespace py = pybind11;

namespace ringdp::bindings {
namespace {

py::list setting_rows() {
  py::list rows;
  for (const SettingRow& row : setting_table()) {
    const SettingValue value = describe_setting(row);
    py::dict d;
    d["field"] = row.field;
    d["variable"] = row.variable;
    d["value"] = value.value;
    d["source"] = value.source;
    d["default"] = row.fallback;
    d["accepts"] = row.accepts;
    d["help"] = row.help;
    rows.append(d);
  }
  return rows;
}

py::list threshold_fields() {
  py::list names;
  for (const auto& f : kThresholdFields) names.append(f.field);
  return names;
}

py::dict built_for() {
  py::dict d;
  d["torch"] = RINGDP_TORCH_VERSION;
  d["python"] = std::to_string(PY_MAJOR_VERSION) + "." + std::to_string(PY_MINOR_VERSION);
  d["compiler"] = __VERSION__;
  return d;
}

void bind_settings(py::module_& m) {
  m.def("setting_table", &setting_rows);
  m.def("threshold_fields", &threshold_fields);
  m.def("check_environment", [] {
    try {
      settings_from_environment();
      trace_events_from_environment();
    } catch (const Error& error) {
      throw py::value_error(error.what());
    }
  });
  m.def("instruction_set", &kernels::instruction_set);
  m.def("built_for", &built_for);
}

}  // namespace
}  // namespace ringdp::bindings

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  ringdp::bindings::bind_settings(m);
  ringdp::bindings::bind_plan(m);
  ringdp::bindings::bind_device_plan(m);
  ringdp::bindings::bind_gpu(m);
  ringdp::bindings::bind_backend(m);
  ringdp::bindings::bind_network(m);
  ringdp::bindings::bind_reducer(m);
  ringdp::bindings::bind_zero(m);
  ringdp::bindings::bind_watch(m);
  ringdp::bindings::bind_compress(m);
}
