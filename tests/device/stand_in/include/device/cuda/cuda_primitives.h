// In place of csrc/device/cuda/cuda_primitives.h, which is PTX: the primitives of tests/cpp, on a block's host threads.
//
// Stores go to memory at once. What a kernel touches its device must reach (stand_in/memory.h). A thread that has
// polled for long sleeps between polls: ranks that wait leave the cores to those they wait for.
#pragma once
#include <chrono>
#include <cmath>
#include <thread>

#include "device/cpp/kernel/host_prim.h"
#include "stand_in/memory.h"

namespace ringdp::gpu {

inline thread_local int blocks_of_grid = 1;
inline thread_local int polls_in_a_row = 0;

struct CudaPrimitives : testing::HostPrim {
  static int blocks() { return blocks_of_grid; }
  static void sync() {
    polls_in_a_row = 0;
    HostPrim::sync();
  }
  template <class V>
  static V load_acquire(const V* from) {
    rest();
    stand_in::touch(from, sizeof *from);
    return HostPrim::load_acquire(from);
  }
  template <class V>
  static void store_release(V* to, V value) {
    stand_in::touch(to, sizeof *to);
    HostPrim::store_release(to, value);
  }
  static MarkedWords load_words(const MarkedWords* from) {
    rest();
    stand_in::touch(from, sizeof *from);
    return HostPrim::load_words(from);
  }
  static void store_words(MarkedWords* to, MarkedWords words) {
    stand_in::touch(to, sizeof *to);
    HostPrim::store_words(to, words);
  }
  static Pack load(const Pack* from) {
    polls_in_a_row = 0;
    stand_in::touch(from, sizeof *from);
    return HostPrim::load(from);
  }
  static void store(Pack* to, Pack pack) {
    stand_in::touch(to, sizeof *to);
    HostPrim::store(to, pack);
  }
  static constexpr int kWarp = 1;
  static uint32_t largest_of_warp(uint32_t value) { return value; }
  static bool any_of_warp(bool flag) { return flag; }
  static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  static float root(float value) { return std::sqrt(value); }

 private:
  static void rest() {
    constexpr int kLong = 1 << 14, kOneIn = 64;
    if (++polls_in_a_row < kLong || polls_in_a_row % kOneIn != 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
};

}  // namespace ringdp::gpu
