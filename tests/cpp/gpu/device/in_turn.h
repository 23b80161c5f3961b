// Test support: the primitives of a kernel in which no thread waits for another, for threads that run one after the other.
#pragma once
#include <cstdint>

#include "gpu/device/pack.h"

namespace ringdp::gpu::testing {

struct InTurn {
  static constexpr int kBlocks = 3, kThreads = 5;
  inline static int at_block = 0, at_thread = 0;

  static int block() { return at_block; }
  static int blocks() { return kBlocks; }
  static int thread() { return at_thread; }
  static int threads() { return kThreads; }
  static uint32_t load_acquire(const uint32_t* from) { return *from; }
  static Pack load(const Pack* from) { return *from; }
  static void store(Pack* to, Pack pack) { *to = pack; }
};

// The first thread of a block first.
template <class Kernel>
void run_in_turn(Kernel kernel) {
  for (int& b = InTurn::at_block = 0; b < InTurn::kBlocks; ++b) {
    for (int& t = InTurn::at_thread = 0; t < InTurn::kThreads; ++t) kernel();
  }
}

}  // namespace ringdp::gpu::testing
