// Fold on every instruction set against a reference; what it refuses, and the paths that compute nothing.
#include "kernels/fold.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <complex>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "fold_reference.h"
#include "instruction_sets.h"
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

TYPED_TEST_SUITE(FoldSuite, EverySet, NameOfSet);

TYPED_TEST(FoldSuite, EveryTypeOpNumberOfSourcesAndCount) {
  this->for_each([&](FoldCase c) {
    for (const int64_t count : kCounts) {
      c.count = count;
      check_case(this->pick_, c);
    }
  });
}

TYPED_TEST(FoldSuite, InPlaceOnEachSource) {
  this->for_each([&](FoldCase c) {
    for (c.first_alias = 0; c.first_alias < c.n_srcs; ++c.first_alias) {
      for (const int64_t count : {17, 1000}) {
        c.count = count;
        check_case(this->pick_, c);
      }
    }
  });
}

TYPED_TEST(FoldSuite, SeveralDestinationsSeparateAndInPlace) {
  this->for_each([&](FoldCase c) {
    for (const int n_dsts : {2, 3, c.n_srcs}) {
      for (const int first_alias : {-1, 0, c.n_srcs - 1}) {
        c.n_dsts = n_dsts, c.first_alias = first_alias, c.count = 1500;
        check_case(this->pick_, c);
      }
    }
  });
}

TYPED_TEST(FoldSuite, WidePartialSums) {
  this->for_each([&](FoldCase c) {
    for (int wide = 1; wide < 4; ++wide) {
      for (const int64_t count : {15, 2100}) {
        c.wide_src = wide & 1, c.wide_dst = wide & 2, c.count = count;
        for (c.n_dsts = 1; c.n_dsts <= 2; ++c.n_dsts) check_case(this->pick_, c);
      }
    }
  });
}

TYPED_TEST(FoldSuite, APrefixIsAccumulatedInPlace) {
  this->for_each([&](FoldCase c) {
    c.wide_src = c.wide_dst = true, c.first_alias = 0, c.count = 1100;
    check_case(this->pick_, c);
  });
}

TYPED_TEST(FoldSuite, DividesOnceInTheWideType) {
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

TYPED_TEST(FoldSuite, EveryHalfAndBFloat16WidensExactlyAndRoundsBack) {
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
TYPED_TEST(FoldSuite, MidpointsRoundToEven) {
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

}  // namespace ringdp::kernels::testing

namespace ringdp::kernels {
namespace {

// Two float sources and two destinations that a test may spoil.
struct Call {
  std::vector<float> a = {1, 2, 3}, b = {10, 20, 30}, x = {-1, -1, -1}, y = {-1, -1, -1};
  std::vector<const void*> srcs = {a.data(), b.data()};
  std::vector<void*> dsts = {x.data(), y.data()};
  FoldArgs args;

  Call() { args.srcs = srcs.data(), args.n_srcs = 2, args.dsts = dsts.data(), args.n_dsts = 2, args.count = 3; }
};

void expect_refused(const std::function<void(Call&)>& spoil, const std::string& part) {
  Call call;
  spoil(call);
  try {
    fold(call.args);
    FAIL() << "accepted, expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  EXPECT_EQ(call.x, std::vector<float>(3, -1));
  EXPECT_EQ(call.y, std::vector<float>(3, -1));
}

TEST(Fold, RefusesBadArgumentsAndWritesNothing) {
  expect_refused([](Call& c) { c.args.count = -4; }, "count of -4");
  expect_refused([](Call& c) { c.args.n_srcs = 0; }, "0 sources");
  expect_refused([](Call& c) { c.args.n_dsts = 0; }, "0 destinations");
  expect_refused([](Call& c) { c.srcs[1] = nullptr; }, "source 1 is null");
  expect_refused([](Call& c) { c.dsts[1] = nullptr; }, "destination 1 is null");
}

TEST(Fold, RefusesToDivideIntegersOfEveryTypeByFractions) {
  for (int dtype = 0; dtype < static_cast<int>(DType::kF16); ++dtype) {
    expect_refused(
        [&](Call& c) {
          c.args.dtype = static_cast<DType>(dtype);
          c.args.divisor = 2.5;
        },
        name_of(static_cast<DType>(dtype)));
  }
}

TEST(Fold, RefusesOperationsWithoutAMeaning) {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      if (can_reduce(static_cast<DType>(dtype), static_cast<ReduceOp>(op))) continue;
      expect_refused(
          [&](Call& c) {
            c.args.dtype = static_cast<DType>(dtype);
            c.args.op = static_cast<ReduceOp>(op);
            c.args.count = 1;
          },
          std::string(name_of(static_cast<ReduceOp>(op))) + " has no meaning on " + name_of(static_cast<DType>(dtype)));
    }
  }
}

template <class T>
void fold_complex_numbers(DType dtype) {
  const std::vector<std::complex<T>> a = {{1, 2}, {3, -4}, {0.5, 7}}, b = {{10, 20}, {-30, 40}, {1, 1}};
  std::vector<std::complex<T>> sum(3);
  const void* srcs[] = {a.data(), b.data()};
  void* dst = sum.data();
  FoldArgs args;
  args.srcs = srcs, args.n_srcs = 2, args.dsts = &dst, args.n_dsts = 1, args.count = 3, args.dtype = dtype;
  args.op = ReduceOp::kAvg, args.divisor = 3;
  fold(args);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sum[i].real(), (a[i].real() + b[i].real()) / T{3});
    EXPECT_EQ(sum[i].imag(), (a[i].imag() + b[i].imag()) / T{3});
  }
}

TEST(Fold, ComplexNumbersAddAndDividePartByPart) {
  fold_complex_numbers<float>(DType::kC64);
  fold_complex_numbers<double>(DType::kC128);
}

template <class T>
void average_whole_numbers(DType dtype) {
  const T lowest = std::numeric_limits<T>::lowest(), highest = std::numeric_limits<T>::max();
  const std::vector<T> a = {7, lowest, highest, 1, 0}, b = {static_cast<T>(-14), 1, 1, 1, 5}, c = {0, 0, highest, 0, 3};
  std::vector<T> mean(5), copy(5);
  const void* srcs[] = {a.data(), b.data(), c.data()};
  void* dsts[] = {mean.data(), mean.data(), copy.data()};
  FoldArgs args;
  args.srcs = srcs, args.n_srcs = 3, args.dsts = dsts, args.n_dsts = 3, args.count = 5, args.dtype = dtype;
  args.op = ReduceOp::kAvg, args.divisor = 3;
  fold(args);
  for (size_t i = 0; i < 5; ++i) {
    const T sum = static_cast<T>(uint64_t(a[i]) + uint64_t(b[i]) + uint64_t(c[i]));
    EXPECT_EQ(mean[i], static_cast<T>(sum / T{3})) << name_of(dtype) << " " << i;
  }
  EXPECT_EQ(copy, mean);
  args.divisor = 2.5;
  EXPECT_THROW(fold(args), Error);
}

TEST(Fold, TheMeanOfWholeNumbersIsTowardZero) {
  average_whole_numbers<int8_t>(DType::kI8);
  average_whole_numbers<uint8_t>(DType::kU8);
  average_whole_numbers<int16_t>(DType::kI16);
  average_whole_numbers<uint32_t>(DType::kU32);
  average_whole_numbers<int64_t>(DType::kI64);
  average_whole_numbers<uint64_t>(DType::kU64);
}

TEST(Fold, BoolsAreLogic) {
  const std::map<ReduceOp, std::vector<bool>> truth = {
      // of 00, 01, 10, 11
      {ReduceOp::kSum, {0, 1, 1, 1}},  {ReduceOp::kMax, {0, 1, 1, 1}},  {ReduceOp::kBor, {0, 1, 1, 1}},
      {ReduceOp::kMin, {0, 0, 0, 1}},  {ReduceOp::kBand, {0, 0, 0, 1}}, {ReduceOp::kProduct, {0, 0, 0, 1}},
      {ReduceOp::kBxor, {0, 1, 1, 0}},
  };
  const uint8_t a[] = {0, 0, 1, 1}, b[] = {0, 1, 0, 1};
  for (const auto& [op, want] : truth) {
    uint8_t got[4] = {9, 9, 9, 9};
    const void* srcs[] = {a, b};
    void* dst = got;
    FoldArgs args;
    args.srcs = srcs, args.n_srcs = 2, args.dsts = &dst, args.n_dsts = 1, args.count = 4;
    args.dtype = DType::kBool, args.op = op;
    fold(args);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got[i], want[i]) << name_of(op) << " of " << int{a[i]} << int{b[i]};
  }
}

TEST(Fold, NoElementsNeedNoBuffers) {
  Call call;
  call.srcs = {nullptr, nullptr};
  call.dsts = {nullptr, nullptr};
  call.args.count = 0;
  EXPECT_NO_THROW(fold(call.args));
}

TEST(Fold, OneSourceIsCopiedBitForBitToEveryDestination) {
  std::vector<uint32_t> source(30011), first(source.size()), second(source.size());
  std::iota(source.begin(), source.end(), 0x7f800000u - 100);  // across infinity into signalling NaNs
  const void* src = source.data();
  std::vector<void*> dsts = {first.data(), source.data(), second.data()};
  const std::vector<uint32_t> before = source;
  FoldArgs args;
  args.srcs = &src, args.n_srcs = 1, args.dsts = dsts.data(), args.n_dsts = 3, args.count = int64_t(source.size());
  fold(args);
  EXPECT_EQ(first, before);
  EXPECT_EQ(second, before);
  EXPECT_EQ(source, before);
}

TEST(Fold, TheSameDestinationTwiceIsWrittenOnce) {
  Call call;
  call.dsts = {call.x.data(), call.x.data()};
  call.args.dsts = call.dsts.data();
  fold(call.args);
  EXPECT_EQ(call.x, (std::vector<float>{11, 22, 33}));
}

// The order is the contract: in another order the large values would not cancel.
TEST(Fold, AddsInTheOrderOfTheSources) {
  const std::vector<float> values = {1e8f, -1e8f, 1.0f, 3e-8f};
  std::vector<const void*> srcs;
  for (const float& value : values) srcs.push_back(&value);
  float sum = 0;
  void* dst = &sum;
  FoldArgs args;
  args.srcs = srcs.data(), args.n_srcs = 4, args.dsts = &dst, args.n_dsts = 1, args.count = 1;
  fold(args);
  EXPECT_EQ(sum, ((values[0] + values[1]) + values[2]) + values[3]);
  std::swap(srcs[1], srcs[2]);
  fold(args);
  EXPECT_EQ(sum, ((values[0] + values[2]) + values[1]) + values[3]);
}

TEST(Fold, TakesNoRoundingFromItsThread) {
  const std::vector<float> ones(100, 1.0f), tinies(100, std::ldexp(1.0f, -30));
  const void* const srcs[] = {ones.data(), tinies.data()};
  std::vector<float> sum(100), along_tree(100);
  void *dst = sum.data(), *tree_dst = along_tree.data();
  FoldArgs args;
  args.srcs = srcs, args.n_srcs = 2, args.dsts = &dst, args.n_dsts = 1, args.count = 100;
  const std::vector<TreeSource> sources = {{srcs[0]}, {srcs[1]}};
  const std::vector<int> program = {0, 1, -1};
  TreeArgs tree;
  tree.srcs = sources, tree.program = program, tree.dsts = {&tree_dst, 1}, tree.count = 100;
  const int before = std::fegetround();
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  fold(args);
  fold_tree(tree);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(before);
  EXPECT_EQ(sum, ones);
  EXPECT_EQ(along_tree, ones);
}

}  // namespace

}  // namespace ringdp::kernels
