// Test support: the instruction sets that a suite of kernels is instantiated with, by the names they have in dispatch.h.
#pragma once
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

}  // namespace ringdp::kernels::testing
