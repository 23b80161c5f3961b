// What fold refuses, and the paths that compute nothing. The arithmetic is tested per instruction set.
#include "kernels/fold.h"

#include <gtest/gtest.h>

#include <complex>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"

namespace ringdp::kernels {
namespace {

// Two float sources and two destinations that a test may spoil.
struct Call {
  std::vector<float> a = {1, 2, 3}, b = {10, 20, 30}, x = {-1, -1, -1}, y = {-1, -1, -1};
  std::vector<const void*> srcs = {a.data(), b.data()};
  std::vector<void*> dsts = {x.data(), y.data()};
  FoldArgs args;

  Call() {
    args.srcs = srcs.data(), args.n_srcs = 2, args.dsts = dsts.data(), args.n_dsts = 2, args.count = 3;
  }
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
  const std::map<ReduceOp, std::vector<bool>> truth = {  // of 00, 01, 10, 11
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

}  // namespace
}  // namespace ringdp::kernels
