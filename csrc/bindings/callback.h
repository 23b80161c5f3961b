// Python functions as C++ callbacks that may be called, and destroyed, without the GIL.
#pragma once
#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace ringdp::bindings {

template <class Result = void, class... Arguments>
std::function<Result(Arguments...)> without_gil(pybind11::function call) {
  const std::shared_ptr<pybind11::function> shared(new pybind11::function(std::move(call)), [](pybind11::function* held) {
    const pybind11::gil_scoped_acquire gil;
    delete held;
  });
  return [shared](Arguments... arguments) -> Result {
    const pybind11::gil_scoped_acquire gil;
    pybind11::object result = (*shared)(arguments...);
    if constexpr (!std::is_void_v<Result>) return result.template cast<Result>();
  };
}

}  // namespace ringdp::bindings
