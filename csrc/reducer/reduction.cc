#include "reducer/reduction.h"

namespace ringdp::reducer {
namespace {

// The first caller sets it.
void note(std::atomic<int64_t>& ns) {
  int64_t unknown = 0;
  ns.compare_exchange_strong(unknown, now_ns());
}

}  // namespace

EndTime::EndTime(c10::ivalue::Future& future) {
  future.addCallback([ns = ns_](c10::ivalue::Future&) { note(*ns); }, /*uses_future=*/false);
}

EndTime::EndTime(c10d::Work& work) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  try {
    future = work.getFuture();
  } catch (const c10::Error&) {
    return;
  }
  if (future) *this = EndTime(*future);
}

int64_t EndTime::get() const {
  note(*ns_);
  return *ns_;
}

}  // namespace ringdp::reducer
