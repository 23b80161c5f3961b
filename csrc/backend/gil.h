// Releases the GIL for a scope if this thread holds it: for destructors that wait, which Python runs with the GIL held.
#pragma once
#include <Python.h>

namespace ringdp::backend {

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
