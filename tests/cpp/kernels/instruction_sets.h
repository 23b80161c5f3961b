// Test support: the instruction sets that a suite of kernels runs on, by the names they have in dispatch.h.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "kernels/dispatch.h"

namespace ringdp::kernels::testing {

struct Avx2 {
  static const char* name() { return "avx2"; }
};

struct Avx512 {
  static const char* name() { return "avx512"; }
};

// What the compiler makes for every machine of its kind.
struct Baseline {
  static const char* name() { return supported_instruction_sets().back().name; }
};

using EverySet = ::testing::Types<Baseline, Avx2, Avx512>;

// Names tests "CodecSuite/avx2.Test".
struct NameOfSet {
  template <class Set>
  static std::string GetName(int) {
    return Set::name();
  }
};

}  // namespace ringdp::kernels::testing
