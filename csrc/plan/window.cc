#include "plan/window.h"

namespace ringdp::plan {

Window::Window(Builder& builder, int slots, int64_t slot_bytes) : readers_(slots) {
  for (int i = 0; i < slots; ++i) offsets_.push_back(builder.reserve_scratch(slot_bytes));
}

Window::Slot Window::take() {
  const size_t i = next_++ % offsets_.size();
  return {static_cast<int>(i), offsets_[i], readers_[i]};
}

}  // namespace ringdp::plan
