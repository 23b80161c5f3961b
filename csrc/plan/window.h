// A few slots of scratch used in turn: bounds the memory of a pipeline, whatever the length of the message.
//
// A slot is written again only after its last reader; take() says what that is. Used while a plan is built.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/builder.h"

namespace ringdp::plan {

// Segments in flight per stream: enough to receive, fold and send at the same time with one to spare.
constexpr int kWindow = 4;

class Window {
 public:
  struct Slot {
    int index = 0;
    int64_t offset = 0;        // bytes into scratch
    std::vector<After> free;   // what has to be over before the slot is written
  };

  Window(Builder& builder, int slots, int64_t slot_bytes);

  Slot take();
  void release_after(int index, After reader) { readers_[index] = {reader}; }

 private:
  std::vector<int64_t> offsets_;
  std::vector<std::vector<After>> readers_;  // of the latest use; empty before the first
  size_t next_ = 0;
};

}  // namespace ringdp::plan
