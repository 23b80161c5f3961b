// Python in calls that wait: they do not hold the GIL, and let signal handlers run.
#pragma once
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <chrono>

namespace ringdp::backend {

// Python runs signal handlers in its main thread only, between two lines.
inline bool runs_signal_handlers() { return Py_IsInitialized() && ::gettid() == ::getpid(); }

// In that thread: runs the handlers of pending signals and throws what one raises (KeyboardInterrupt after Ctrl-C).
inline void run_signal_handlers() {
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

constexpr std::chrono::milliseconds kSignalsEvery{200};  // how long Ctrl-C may stay unnoticed

// Releases the GIL for a scope if this thread holds it: for destructors that wait, which Python runs with the GIL held.
class ReleaseGil {
 public:
  ReleaseGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~ReleaseGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace ringdp::backend
