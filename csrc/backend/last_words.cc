#include "backend/last_words.h"

#include <pybind11/pybind11.h>

#include "base/log.h"

namespace ringdp::backend {

std::string last_words() noexcept {
  if (!Py_IsInitialized()) return "";
  const pybind11::gil_scoped_acquire gil;
  try {
    return pybind11::module_::import("ringdp.last_words").attr("current")().cast<std::string>();
  } catch (const std::exception& error) {
    log_line(LogLevel::kDebug, "", std::string("no last words: ") + error.what());
    return "";
  }
}

}  // namespace ringdp::backend
