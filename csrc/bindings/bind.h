// What module.cc calls: one function per subject. Thin, no logic; docstrings are in _C.pyi.
#pragma once
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "backend/gil.h"

namespace ringdp::bindings {

void bind_gpu(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_device_plan(pybind11::module_& m);
void bind_backend(pybind11::module_& m);
void bind_network(pybind11::module_& m);
void bind_reducer(pybind11::module_& m);
void bind_zero(pybind11::module_& m);
void bind_watch(pybind11::module_& m);
void bind_compress(pybind11::module_& m);

// A Python function as a C++ callback that may be called, and destroyed, without the GIL.
template <class Result = void, class... Arguments>
std::function<Result(Arguments...)> without_gil(pybind11::function call) {
  const std::shared_ptr<pybind11::function> shared(new pybind11::function(std::move(call)),
                                                   [](pybind11::function* held) {
                                                     const pybind11::gil_scoped_acquire gil;
                                                     delete held;
                                                   });
  return [shared](Arguments... arguments) -> Result {
    const pybind11::gil_scoped_acquire gil;
    pybind11::object result = (*shared)(arguments...);
    if constexpr (!std::is_void_v<Result>) return result.template cast<Result>();
  };
}

// Of a holder: deletes without the GIL. What keeps a process group may be the last to do so, and gloo's waits for its
// threads, which need the GIL to free the Python objects of a collective.
struct DeleteWithoutGil {
  template <class T>
  void operator()(T* held) const {
    const backend::ReleaseGil release;
    delete held;
  }
};
template <class T>
using FreedWithoutGil = std::unique_ptr<T, DeleteWithoutGil>;

}  // namespace ringdp::bindings
