// Test support: what is left to long runs, which have RINGDP_TEST_LONG=1 in their environment.
//
// It repeats, at other sizes or with other numbers of ranks, what tests of every run do already.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#define RINGDP_LONG_TEST()                                                 \
  do {                                                                     \
    if (!::ringdp::long_tests()) GTEST_SKIP() << "for RINGDP_TEST_LONG=1"; \
  } while (false)

namespace ringdp {

inline bool long_tests() {
  const char* const value = std::getenv("RINGDP_TEST_LONG");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Under a sanitizer everything takes ten times as long, and every path is to be taken once.
inline bool once_will_do() { return kSanitized && !long_tests(); }

}  // namespace ringdp
