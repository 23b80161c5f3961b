// What module.cc calls: one function per room. Thin, no logic; docstrings are in _C.pyi.
#pragma once
#include <torch/csrc/utils/pybind.h>

namespace ringdp::bindings {

void bind_settings(pybind11::module_& m);
void bind_gpu(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_device_plan(pybind11::module_& m);
void bind_backend(pybind11::module_& m);
void bind_reducer(pybind11::module_& m);
void bind_zero(pybind11::module_& m);

}  // namespace ringdp::bindings
