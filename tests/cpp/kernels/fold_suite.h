// The tests every instruction set passes; fold_<set>_test.cc instantiates them with a type that has name().
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fold_case.h"
#include "kernels/dispatch.h"
#include "long_tests.h"

namespace ringdp::kernels::testing {

inline std::vector<int> numbers_of_sources() {
  if (once_will_do()) return {1, 2, 9};
  return {1, 2, 3, 4, 7, 8, 9, 16, 17};
}
constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 1000, 4099};

inline KernelPicker find_set(const std::string& name) {
  for (const InstructionSet& set : supported_instruction_sets()) {
    if (set.name == name) return set.pick;
  }
  return nullptr;
}

template <class Set>
class FoldSuite : public ::testing::Test {
 protected:
  void SetUp() override {
    pick_ = find_set(Set::name());
    if (pick_ == nullptr) GTEST_SKIP() << "this machine or this build has no " << Set::name();
  }

  // Calls visit(case) for every type, operation and number of sources; the visitor sets the rest.
  template <class Visitor>
  void for_each(Visitor visit) {
    for (int dtype = 0; dtype < kNumberCount; ++dtype) {
      for (int op = 0; op < kReduceOpCount; ++op) {
        for (const int n_srcs : numbers_of_sources()) {
          FoldCase c;
          c.dtype = static_cast<DType>(dtype), c.op = static_cast<ReduceOp>(op), c.n_srcs = n_srcs;
          if (can_reduce(c.dtype, c.op)) visit(c);
        }
      }
    }
  }

  // A fold of the one source, as n_srcs == 1 with a change of width.
  void convert(DType dtype, const void* from, void* to, int64_t count, bool wide_src) {
    FoldArgs args;
    args.srcs = &from, args.n_srcs = 1, args.dsts = &to, args.n_dsts = 1;
    args.count = count, args.dtype = dtype, args.wide_src = wide_src, args.wide_dst = !wide_src;
    fold_with(pick_, args);
  }

  KernelPicker pick_ = nullptr;
};

TYPED_TEST_SUITE_P(FoldSuite);

TYPED_TEST_P(FoldSuite, EveryTypeOpNumberOfSourcesAndCount) {
  this->for_each([&](FoldCase c) {
    for (const int64_t count : kCounts) {
      c.count = count;
      check_case(this->pick_, c);
    }
  });
}

TYPED_TEST_P(FoldSuite, InPlaceOnEachSource) {
  this->for_each([&](FoldCase c) {
    for (c.first_alias = 0; c.first_alias < c.n_srcs; ++c.first_alias) {
      for (const int64_t count : {17, 1000}) {
        c.count = count;
        check_case(this->pick_, c);
      }
    }
  });
}

TYPED_TEST_P(FoldSuite, SeveralDestinationsSeparateAndInPlace) {
  this->for_each([&](FoldCase c) {
    for (const int n_dsts : {2, 3, c.n_srcs}) {
      for (const int first_alias : {-1, 0, c.n_srcs - 1}) {
        c.n_dsts = n_dsts, c.first_alias = first_alias, c.count = 1500;
        check_case(this->pick_, c);
      }
    }
  });
}

TYPED_TEST_P(FoldSuite, WidePartialSums) {
  this->for_each([&](FoldCase c) {
    for (int wide = 1; wide < 4; ++wide) {
      for (const int64_t count : {15, 2100}) {
        c.wide_src = wide & 1, c.wide_dst = wide & 2, c.count = count;
        for (c.n_dsts = 1; c.n_dsts <= 2; ++c.n_dsts) check_case(this->pick_, c);
      }
    }
  });
}

TYPED_TEST_P(FoldSuite, APrefixIsAccumulatedInPlace) {
  this->for_each([&](FoldCase c) {
    c.wide_src = c.wide_dst = true, c.first_alias = 0, c.count = 1100;
    check_case(this->pick_, c);
  });
}

TYPED_TEST_P(FoldSuite, DividesOnceInTheWideType) {
  this->for_each([&](FoldCase c) {
    if (!is_floating(c.dtype)) return;
    for (const double divisor : {3.0, -7.0, 0.1}) {
      for (int wide = 0; wide < 4; ++wide) {
        c.divisor = divisor, c.wide_src = wide & 1, c.wide_dst = wide & 2, c.count = 1037;
        c.n_dsts = 1 + wide % 2;
        check_case(this->pick_, c);
      }
    }
  });
}

TYPED_TEST_P(FoldSuite, EveryHalfAndBFloat16WidensExactlyAndRoundsBack) {
  std::vector<uint16_t> all(65536), back(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const auto& [dtype, format] : {std::pair(DType::kF16, kHalfFormat), std::pair(DType::kBF16, kBFloat16Format)}) {
    std::vector<float> wide(all.size());
    this->convert(dtype, all.data(), wide.data(), 65536, false);
    this->convert(dtype, wide.data(), back.data(), 65536, true);
    for (size_t i = 0; i < all.size(); ++i) {
      const float want = decode(format, all[i]);
      const bool nan = std::isnan(want);
      const uint32_t bits = nan ? 0x7fc00000u : __builtin_bit_cast(uint32_t, want);
      ASSERT_EQ(__builtin_bit_cast(uint32_t, wide[i]), bits) << name_of(dtype) << " 0x" << std::hex << i;
      ASSERT_EQ(back[i], nan ? format.nan : all[i]) << name_of(dtype) << " 0x" << std::hex << i;
    }
  }
}

// At, just below and just above the midpoint of every two neighbours: ties go to even, the rest to the nearer one.
TYPED_TEST_P(FoldSuite, MidpointsRoundToEven) {
  for (const auto& [dtype, format] : {std::pair(DType::kF16, kHalfFormat), std::pair(DType::kBF16, kBFloat16Format)}) {
    std::vector<float> values;
    for (uint16_t bits = 0; bits < format.infinity; ++bits) {
      const uint16_t above = bits + 1;
      // The value after the largest finite one is where infinity begins, one unit further.
      const double next = above == format.infinity ? 2.0 * decode(format, bits) - decode(format, bits - 1)
                                                   : double(decode(format, above));
      const float middle = float((double(decode(format, bits)) + next) / 2);
      for (const float value : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, INFINITY)}) {
        values.push_back(value);
        values.push_back(-value);
      }
    }
    std::vector<uint16_t> got(values.size());
    this->convert(dtype, values.data(), got.data(), int64_t(values.size()), true);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(got[i], encode(format, values[i])) << name_of(dtype) << " of " << values[i];
    }
  }
}

REGISTER_TYPED_TEST_SUITE_P(FoldSuite, EveryTypeOpNumberOfSourcesAndCount, InPlaceOnEachSource,
                            SeveralDestinationsSeparateAndInPlace, WidePartialSums, APrefixIsAccumulatedInPlace,
                            DividesOnceInTheWideType, EveryHalfAndBFloat16WidensExactlyAndRoundsBack,
                            MidpointsRoundToEven);

}  // namespace ringdp::kernels::testing
