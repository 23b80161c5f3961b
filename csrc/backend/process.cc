#include "backend/process.h"

#include "base/env.h"
#include "base/log.h"

namespace ringdp::backend {
namespace {

comm::Runtime* make_runtime() {
  set_log_level(log_level_from_environment());
  return new comm::Runtime;
}

}  // namespace

comm::Runtime& runtime() {
  static comm::Runtime* const instance = make_runtime();
  return *instance;
}

Completion& completion() {
  static Completion* const instance = new Completion;
  return *instance;
}

}  // namespace ringdp::backend
